"""Statements with a mistake: each is like one of ours, but for one condition, resource, action or effect."""

from collections.abc import Iterator
from typing import Any

from .iam import PRINCIPAL_TAG, Statement

_VARIABLE = f"${{{PRINCIPAL_TAG}tenant}}"


def mutants(statements: tuple[Statement, ...]) -> Iterator[tuple[str, tuple[Statement, ...]]]:
    """Yield the statements with one mistake, and what it is."""
    for number, statement in enumerate(statements):
        before, after = statements[:number], statements[number + 1 :]
        if statement["Effect"] == "Deny":
            yield f"without {statement}", before + after
        for what, mutant in _of_conditions(statement):
            yield f"{what} in {statement}", (*before, mutant, *after)
        for what, mutant in (*_of_resources(statement), *_of_actions(statement)):
            yield f"{what} in {statement}", (*before, mutant, *after)


def _of_conditions(statement: Statement) -> Iterator[tuple[str, Statement]]:
    for operator, keys in statement.get("Condition", {}).items():
        for key, values in keys.items():
            others: dict[str, Any] = {name: one for name, one in keys.items() if name != key}
            yield f"without {operator} {key}", _with(statement, operator, others)
            for wrong in _wrong_values(operator, values):
                yield f"{key}: {wrong}", _with(statement, operator, {**others, key: wrong})


def _wrong_values(operator: str, values: Any) -> Iterator[Any]:
    if operator == "Null":
        yield "true"
        return
    listed = values if isinstance(values, list) else [values]
    yield "*"
    for number, value in enumerate(listed):
        yield [*listed[:number], "x", *listed[number + 1 :]]
        if _VARIABLE in value:
            yield [*listed[:number], value.replace(_VARIABLE, "*"), *listed[number + 1 :]]
            yield [*listed[:number], value.replace(_VARIABLE, f"{_VARIABLE}*"), *listed[number + 1 :]]


def _of_resources(statement: Statement) -> Iterator[tuple[str, Statement]]:
    """A resource is any. Resources with a variable: the variable is lost, or what follows it does not end the tenant's id."""
    resources = statement.get("Resource", [])
    listed = [resources] if isinstance(resources, str) else resources
    for number, resource in enumerate(listed):
        if resource != "*":
            yield "any resource", {**statement, "Resource": [*listed[:number], "*", *listed[number + 1 :]]}
        if _VARIABLE in resource:
            for wrong in (resource.replace(_VARIABLE, "*"), resource.replace(_VARIABLE, f"{_VARIABLE}*")):
                yield f"the resource {wrong}", {**statement, "Resource": [*listed[:number], wrong, *listed[number + 1 :]]}


def _of_actions(statement: Statement) -> Iterator[tuple[str, Statement]]:
    """All actions of the service are allowed. In a trust, which has no resource, there are no others."""
    if statement["Effect"] == "Allow" and "Resource" in statement:
        actions = statement["Action"]
        first = actions if isinstance(actions, str) else actions[0]
        yield "any action", {**statement, "Action": f"{first.partition(':')[0]}:*"}


def _with(statement: Statement, operator: str, keys: dict[str, Any]) -> Statement:
    conditions = {**statement["Condition"], operator: keys}
    return {**statement, "Condition": {name: one for name, one in conditions.items() if one}}
