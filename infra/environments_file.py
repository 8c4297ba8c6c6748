"""Read ``environments.yaml``: settings by environment, over those of ``environments.py``, and environments to add.

A setting is a field of ``Environment`` with a description. An added environment has the settings of the one that its key ``like``
names, so a misspelled name adds nothing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeAlias

import yaml  # type: ignore[import-untyped]
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from infra.environments import ENVIRONMENTS, Domain, Environment, Restored, Traces

Loc: TypeAlias = tuple[str | int, ...]
"""The path to a value: keys and list positions from the root."""


def _fields_of(model: type[Environment | Domain | Restored | Traces]) -> dict[str, FieldInfo]:
    """Return the fields of this model that the file may have, by key."""
    every: dict[str, FieldInfo] = vars(model)["__pydantic_fields__"]
    return {name: field for name, field in every.items() if field.description}


FIELDS: Final[Mapping[str, FieldInfo]] = _fields_of(Environment)
NESTED: Final[Mapping[str, Mapping[str, FieldInfo]]] = {
    "domain": _fields_of(Domain),
    "restored": _fields_of(Restored),
    "traces": _fields_of(Traces),
}
_LIKE: Final = "like"
_PLAIN: Final = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_SHIPPED: Final = f"one of {', '.join(ENVIRONMENTS)}"


class EnvironmentsFileInvalid(Exception):
    """Raised when the file cannot be used. The message has a line for each problem."""


@dataclass(frozen=True, slots=True)
class _Value:
    """The line of a value in the file, and the value as it is written there."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class _Problem:
    """A problem of the value at ``loc``."""

    loc: Loc
    reason: str


class _Reader:
    """Build the data of the file, the place of each value, and the problems of its form."""

    def __init__(self, text: str) -> None:
        self.values: dict[Loc, _Value] = {}
        self.problems: list[_Problem] = []
        self._seen: set[int] = set()
        self._loader = yaml.SafeLoader(text)
        root = self._loader.get_single_node()
        self.data = {} if root is None else self._read(root, ())

    def _read(self, node: yaml.Node, loc: Loc) -> object:
        text = (
            node.value
            if isinstance(node, yaml.ScalarNode)
            else "this mapping"
            if isinstance(node, yaml.MappingNode)
            else "this list"
        )
        self.values.setdefault(loc, _Value(node.start_mark.line + 1, text or "null"))
        if id(node) in self._seen:
            self.problems.append(_Problem(loc, "an alias is not allowed; write the value out"))
            return None
        self._seen.add(id(node))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
            self.problems.append(_Problem(loc, f"the tag {node.tag} is not allowed; write a plain value"))
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return [self._read(one, (*loc, number)) for number, one in enumerate(node.value)]
        try:
            return self._loader.construct_object(node)
        except ValueError:  # PyYAML's own, for what only looks like a number or a date, e.g. 2026-02-30
            self.problems.append(_Problem(loc, "is neither a number nor a date; write it in quotes"))
            return None

    def _read_mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, object]:
        mapping: dict[str, object] = {}
        for key_node, value_node in node.value:
            at = (*loc, str(key_node.value))
            if at[-1] in mapping:
                first = self.values[at].line
                self.values[*at, key_node.start_mark.line] = _Value(key_node.start_mark.line + 1, "")
                self.problems.append(
                    _Problem((*at, key_node.start_mark.line), f"it is in line {first} already; keep one of both")
                )
                continue
            mapping[str(at[-1])] = self._read(value_node, at)
            self.values[at] = _Value(key_node.start_mark.line + 1, self.values[at].text)
        return mapping


def load_environments(path: Path | None) -> dict[str, Environment]:
    """Return the environments by name: those of ``environments.py`` with the settings of the file, then those that it adds.
    Without a path, return the former as they are.

    Raises:
        EnvironmentsFileInvalid: the file cannot be read, or has an unknown key or a value that is not allowed.
    """
    if path is None:
        return ENVIRONMENTS
    file = _display(path)
    try:
        reader = _Reader(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentsFileInvalid(f"{file}: cannot read the file: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise EnvironmentsFileInvalid(f"{file}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None
    environments = dict(ENVIRONMENTS)
    problems = reader.problems or [*_apply(reader.data, environments)]
    if problems:
        raise EnvironmentsFileInvalid(_describe(file, problems, reader.values))
    return environments


def _apply(data: object, environments: dict[str, Environment]) -> Iterator[_Problem]:
    """Change and add environments as the file's data says, and yield what is wrong with it."""
    if not isinstance(data, dict):
        yield _Problem((), f"write a mapping from the name of an environment, {_SHIPPED}, to its settings")
        return
    for name, settings in data.items():
        if settings is not None and not isinstance(settings, dict):
            yield _Problem((name,), f"write a mapping of settings: {', '.join(FIELDS)}")
            continue
        unknown = [key for key in settings or () if key not in FIELDS and key != _LIKE]
        yield from (_Problem((name, key), _unknown(key, FIELDS)) for key in unknown)
        known = {key: value for key, value in (settings or {}).items() if key not in unknown}
        if problem := _problem_of_base(name, known):
            yield problem
            continue
        try:
            environments[name] = _merge(name, known)
        except ValidationError as error:
            yield from (_explain(name, detail, known) for detail in error.errors(include_url=False))


def _problem_of_base(name: str, settings: Mapping[str, object]) -> _Problem | None:
    """Return what is wrong with the environment whose settings this one has."""
    like = settings.get(_LIKE)
    if name in ENVIRONMENTS:
        if _LIKE in settings:
            return _Problem((name, _LIKE), f"only an added environment has this key, and {name} is not added")
    elif _LIKE not in settings:
        return _Problem((name,), f"there is no such environment{_suggest(name, ENVIRONMENTS)}; to add it, write like: {_SHIPPED}")
    elif not isinstance(like, str) or like not in ENVIRONMENTS:
        return _Problem((name, _LIKE), f"is not allowed; write {_SHIPPED}")
    return None


def _merge(name: str, settings: Mapping[str, object]) -> Environment:
    base = ENVIRONMENTS[str(settings.get(_LIKE, name))]
    values: dict[str, object] = {field.name: getattr(base, field.name) for field in fields(base)}
    values |= {key: value for key, value in settings.items() if key != _LIKE}
    return Environment(**values | {"name": name})  # type: ignore[arg-type]  # pydantic checks the types


def _explain(name: str, detail: ErrorDetails, settings: Mapping[str, object]) -> _Problem:
    """Return the problem that pydantic found in this environment, with what is allowed instead."""
    loc = detail["loc"]
    known = NESTED[str(loc[0])] if len(loc) > 1 else FIELDS
    if loc == ("name",):
        return _Problem((name,), "write 2 to 16 lower-case letters, digits and hyphens as its name, with a letter first")
    match detail["type"]:
        case "conflict":
            within, other = detail["ctx"]["within"], detail["ctx"]["other"]
            if loc[0] not in settings and other in settings:
                loc = (other,)
            return _Problem((name, *loc, *([within] if within else [])), detail["msg"])
        case "unexpected_keyword_argument":
            return _Problem((name, *loc), _unknown(str(loc[-1]), known))
        case "missing":
            return _Problem((name, *loc), f"the key is missing; write {known[str(loc[-1])].description}")
        case _:
            return _Problem((name, *loc), f"is not allowed; write {known[str(loc[-1])].description}")


def _unknown(key: str, known: Collection[str]) -> str:
    return f"there is no such key{_suggest(key, known)}; the keys are {', '.join(known)}"


def _suggest(word: str, known: Collection[str]) -> str:
    close = get_close_matches(word, known, 1)
    return f", did you mean {close[0]}?" if close else ""


def _describe(file: str, problems: Sequence[_Problem], values: Mapping[Loc, _Value]) -> str:
    """Return one line for each problem, in the order of the file: file, line, key, value and reason."""
    lines: list[tuple[int, str]] = []
    for problem in problems:
        at = problem.loc
        while at not in values:
            at = at[:-1]
        value = values[at]
        key = ".".join(part for part in problem.loc if isinstance(part, str))
        shown = f" = {value.text}" if at == problem.loc and value.text else ""
        subject = f"{key}{shown}" if key else value.text
        lines.append((value.line, f"{file}:{value.line}: {subject}: {problem.reason}"))
    return "\n".join(line for _, line in sorted(lines))


def _display(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
