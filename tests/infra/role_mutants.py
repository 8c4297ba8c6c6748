"""Statements with one mistake each: in a condition, a resource, an action or an effect."""

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
    """Replace a resource by all resources. If it has a variable, replace the variable by a wildcard, or add a wildcard to it."""
    resources = statement.get("Resource", [])
    listed = [resources] if isinstance(resources, str) else resources
    for number, resource in enumerate(listed):
        if resource != "*":
            yield "any resource", {**statement, "Resource": [*listed[:number], "*", *listed[number + 1 :]]}
        if _VARIABLE in resource:
            for wrong in (resource.replace(_VARIABLE, "*"), resource.replace(_VARIABLE, f"{_VARIABLE}*")):
                yield f"the resource {wrong}", {**statement, "Resource": [*listed[:number], wrong, *listed[number + 1 :]]}


def _of_actions(statement: Statement) -> Iterator[tuple[str, Statement]]:
    """Allow all actions of the service. A trust policy, which has no resource, is left as it is."""
    if statement["Effect"] == "Allow" and "Resource" in statement:
        actions = statement["Action"]
        first = actions if isinstance(actions, str) else actions[0]
        yield "any action", {**statement, "Action": f"{first.partition(':')[0]}:*"}


def _with(statement: Statement, operator: str, keys: dict[str, Any]) -> Statement:
    conditions = {**statement["Condition"], operator: keys}
    return {**statement, "Condition": {name: one for name, one in conditions.items() if one}}
