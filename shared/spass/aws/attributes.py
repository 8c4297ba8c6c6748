"""Convert values to DynamoDB's attribute values, and back."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, cast

from spass.store.attributes import Item, Value

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef


def item_of(stored: "Mapping[str, AttributeValueTypeDef]") -> Item:
    """Return the item that boto3 read."""
    return {name: _value(cast("Mapping[str, object]", attribute)) for name, attribute in stored.items()}


def attribute_of(value: Value) -> "AttributeValueTypeDef":
    """Return ``value`` as boto3 writes it."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case Decimal():
            return {"N": f"{value:f}"}
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case frozenset():
            return {"SS": sorted(value)}
        case Mapping():
            return {"M": {name: attribute_of(inner) for name, inner in value.items()}}
        case _:
            return {"L": [attribute_of(inner) for inner in value]}


def _value(attribute: Mapping[str, object]) -> Value:
    ((kind, content),) = attribute.items()
    match kind:
        case "NULL":
            return None
        case "N":
            number = Decimal(cast(str, content))
            return int(number) if number == number.to_integral_value() else number
        case "M":
            return {name: _value(inner) for name, inner in cast("Mapping[str, Mapping[str, object]]", content).items()}
        case "SS":
            return frozenset(cast("Sequence[str]", content))
        case "L":
            return [_value(inner) for inner in cast("Sequence[Mapping[str, object]]", content)]
        case _:
            return cast("str | bytes | bool", content)
