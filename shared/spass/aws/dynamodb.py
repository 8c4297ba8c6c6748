"""Writes as DynamoDB's requests: the one place that writes expressions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spass.aws.attributes import Value, attribute_of
from spass.aws.writes import (
    Absent,
    AllOf,
    AnyOf,
    AtMost,
    Check,
    Condition,
    Contains,
    Delete,
    Equals,
    Exists,
    HasSize,
    Lacks,
    OneOf,
    Put,
    Update,
    Write,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef


def parameters_of(write: Write) -> dict[str, object]:
    """Return the parameters of ``write`` except its table: ``Key`` or ``Item``, and its expressions."""
    expressions = _Expressions()
    parameters: dict[str, object] = {}
    match write:
        case Put():
            parameters["Item"] = {name: attribute_of(value) for name, value in write.attributes.items()} | _key_of(write)
        case Update():
            parameters["Key"] = _key_of(write)
            parameters["UpdateExpression"] = expressions.update(write)
        case Delete() | Check():
            parameters["Key"] = _key_of(write)
    if write.when is not None:
        parameters["ConditionExpression"] = expressions.condition(write.when)
        parameters["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if expressions.names:
        parameters["ExpressionAttributeNames"] = {placeholder: name for name, placeholder in expressions.names.items()}
    if expressions.values:
        parameters["ExpressionAttributeValues"] = expressions.values
    return parameters


def _key_of(write: Write) -> "dict[str, AttributeValueTypeDef]":
    return {"pk": {"S": write.key.pk}, "sk": {"S": write.key.sk}}


class _Expressions:
    """The expressions of one request. ``names`` maps names to placeholders, so that none is a reserved word; ``values`` maps
    placeholders to values."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, AttributeValueTypeDef] = {}

    def update(self, update: Update) -> str:
        sets = [f"{self._path(path)} = {self._value(value)}" for path, value in update.set.items()]
        for path, value in update.default.items():
            sets.append(f"{self._path(path)} = if_not_exists({self._path(path)}, {self._value(value)})")
        adds = []
        for path, value in update.add.items():
            if "." in path:  # ADD takes attributes only
                sets.append(f"{self._path(path)} = {self._path(path)} + {self._value(value)}")
            else:
                adds.append(f"{self._path(path)} {self._value(value)}")
        discards = [f"{self._path(path)} {self._value(members)}" for path, members in update.discard.items()]
        clauses = {"SET": sets, "REMOVE": list(map(self._path, update.remove)), "ADD": adds, "DELETE": discards}
        return " ".join(f"{clause} {', '.join(actions)}" for clause, actions in clauses.items() if actions)

    def condition(self, condition: Condition) -> str:
        match condition:
            case Exists(path):
                return f"attribute_exists({self._path(path)})"
            case Absent(path):
                return f"attribute_not_exists({self._path(path)})"
            case Equals(path, value):
                return f"{self._path(path)} = {self._value(value)}"
            case AtMost(path, value):
                return f"{self._path(path)} <= {self._value(value)}"
            case OneOf(path, list(values) | tuple(values)):
                return f"{self._path(path)} IN ({', '.join(map(self._value, values))})"
            case Contains(path, value):
                return f"contains({self._path(path)}, {self._value(value)})"
            case Lacks(path, value):
                return f"NOT contains({self._path(path)}, {self._value(value)})"
            case HasSize(path, value):
                # DynamoDB needs no attribute_exists here, but moto fails without it.
                return f"(attribute_exists({self._path(path)}) AND size({self._path(path)}) = {self._value(value)})"
            case AllOf(conditions):
                return self._joined(" AND ", conditions)
            case AnyOf(conditions):
                return self._joined(" OR ", conditions)
        raise TypeError(f"not a condition: {condition!r}")

    def _joined(self, operator: str, conditions: Iterable[Condition]) -> str:
        return f"({operator.join(map(self.condition, conditions))})"

    def _path(self, path: str) -> str:
        return ".".join(self.names.setdefault(name, f"#n{len(self.names)}") for name in path.split("."))

    def _value(self, value: Value) -> str:
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = attribute_of(value)
        return placeholder
