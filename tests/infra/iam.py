"""Evaluate policies as IAM does, for the operators and variables that our templates use. Anything else raises ``NotSupported``.

(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html)
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

Statement = Mapping[str, Any]
Context = Mapping[str, Sequence[str]]

PRINCIPAL_TAG: Final = "aws:PrincipalTag/"

_ELEMENTS: Final = {"Sid", "Effect", "Action", "Resource", "Condition", "Principal"}
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
_ALL: Final = "ForAllValues:"
_ARN_PARTS: Final = 6
_PRINCIPALS: Final = {"Service": r"[a-z-]+\.amazonaws\.com", "AWS": r"arn:aws:iam::\d{12}:role/[\w/-]+"}
"""The pattern of the names of each kind of principal."""


class NotSupported(Exception):
    """A policy has an element, an operator or a variable that this evaluator does not know."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call. ``context`` are the condition keys that it has, each with its values."""

    action: str
    resource: str
    context: Context = field(default_factory=dict)


class Policy:
    """The statements that hold for one principal."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        self._statements = [_Statement(one) for one in statements]
        self._by_action: dict[str, list[_Statement]] = {}

    def allows(self, request: Request) -> bool:
        """Return True if a statement allows ``request`` and none denies it."""
        if request.action not in self._by_action:
            self._by_action[request.action] = [one for one in self._statements if one.names(request.action)]
        effects = {one.effect for one in self._by_action[request.action] if one.applies(request)}
        return effects == {"Allow"}


def trusts(statements: Iterable[Statement], caller: tuple[str, str], request: Request) -> bool:
    """Return True if a trust policy lets ``caller`` make ``request``. A caller is a kind (``Service``, ``AWS``) and its name."""
    kind, name = caller
    mine = [one for one in statements if name in _principals(one["Principal"])[kind]]
    return Policy({**one, "Resource": "*"} for one in mine).allows(request)


def _principals(principal: str | Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of each kind of principal. An account or a wildcard would be many callers, of which we try a few."""
    if isinstance(principal, str) or principal.keys() - _PRINCIPALS.keys():
        raise NotSupported(f"the principal {principal}")
    names = {kind: _listed(principal.get(kind, [])) for kind in _PRINCIPALS}
    for kind, pattern in _PRINCIPALS.items():
        if unknown := [name for name in names[kind] if not re.fullmatch(pattern, name)]:
            raise NotSupported(f"the principal {unknown}")
    return names


class _Statement:
    def __init__(self, statement: Statement) -> None:
        if unknown := statement.keys() - _ELEMENTS:
            raise NotSupported(f"the element {', '.join(sorted(unknown))}")
        self.effect = str(statement["Effect"])
        if self.effect not in {"Allow", "Deny"}:
            raise NotSupported(self.effect)
        self._actions = [action.lower() for action in _listed(statement["Action"])]
        self._resources = _listed(statement["Resource"])
        self._conditions = [
            _Condition(operator, key, _listed(values))
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        ]
        for text in (*self._resources, *(value for one in self._conditions for value in one.values)):
            _check_variables(text)

    def names(self, action: str) -> bool:
        return any(_matches(one, action.lower(), {}) for one in self._actions)

    def applies(self, request: Request) -> bool:
        return any(_matches(one, request.resource, request.context) for one in self._resources) and all(
            one.is_met(request.context) for one in self._conditions
        )


class _Condition:
    def __init__(self, operator: str, key: str, values: Sequence[str]) -> None:
        self._is_for_all = operator.startswith(_ALL)
        self._operator = operator.removeprefix(_ALL)
        if self._operator not in {*_OPERATORS, "Null"} or (self._operator == "Null" and self._is_for_all):
            raise NotSupported(f"the operator {operator}")
        self._key = key
        self.values = values

    def is_met(self, context: Context) -> bool:
        asked = _values(context, self._key)
        if self._operator == "Null":
            (is_missing,) = self.values
            return (not asked) == {"true": True, "false": False}[is_missing]
        compare = _OPERATORS[self._operator]
        met = [any(compare(value, one, context) for value in self.values) for one in asked]
        # Without ``ForAllValues``, a key that the request does not have fails. With it, such a key passes.
        return all(met) if self._is_for_all else len(met) == 1 and met[0]


def _equals(value: str, asked: str, context: Context) -> bool:
    return _substitute(value, context) == asked


def _matches(pattern: str, asked: str, context: Context) -> bool:
    """Compare with ``*`` and ``?`` as wildcards. They are wildcards in the value of a variable too, as the worst case: AWS does
    not say that they are not."""
    substituted = _substitute(pattern, context)
    return substituted is not None and _compiled(substituted).fullmatch(asked) is not None


def _matches_arn(pattern: str, asked: str, context: Context) -> bool:
    parts, others = pattern.split(":", _ARN_PARTS - 1), asked.split(":", _ARN_PARTS - 1)
    return len(parts) == len(others) and all(_matches(part, other, context) for part, other in zip(parts, others, strict=True))


_OPERATORS: Final[Mapping[str, Callable[[str, str, Context], bool]]] = {
    "StringEquals": _equals,
    "StringLike": _matches,
    "ArnLike": _matches_arn,
}


def _substitute(text: str, context: Context) -> str | None:
    """Replace the variables of a policy. Return None if the request does not have one of them: then nothing matches."""
    if "${" not in text:
        return text
    values = {}
    for name in _VARIABLE.findall(text):
        if not (found := _values(context, name)):
            return None
        (values[name],) = found
    return _VARIABLE.sub(lambda match: values[match[1]], text)


def _check_variables(text: str) -> None:
    for name in _VARIABLE.findall(text):
        if not name.startswith(PRINCIPAL_TAG):
            raise NotSupported(f"the variable {name}")


def _values(context: Context, key: str) -> Sequence[str]:
    return next((values for name, values in context.items() if name.lower() == key.lower()), ())


def _listed(value: Any) -> list[str]:
    """Return the texts of a value that may be a list. The CDK writes the values of ``Null`` as texts or as booleans."""
    return [str(one).lower() if isinstance(one, bool) else one for one in (value if isinstance(value, list) else [value])]


@lru_cache(maxsize=100_000)
def _compiled(pattern: str) -> re.Pattern[str]:
    wildcards = {"*": ".*", "?": "."}
    return re.compile("".join(wildcards.get(character) or re.escape(character) for character in pattern), re.DOTALL)
