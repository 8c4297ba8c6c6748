"""Convert dataclasses to the attributes of an item, and back. Each field is an attribute of the same name."""

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol, TypeVar

from spass.store.attributes import Value


class Record(Protocol):
    """A dataclass whose fields the table can hold: values of attributes, ids, string enums, or records."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


R = TypeVar("R", bound=Record)


def encode(record: Record) -> dict[str, Value]:
    """Return the attributes of ``record`` without those that are None, so that conditions can test whether they exist."""
    attributes: dict[str, Value] = {}
    for name in record.__dataclass_fields__:
        value = getattr(record, name)
        if value is not None:
            attributes[name] = encode(value) if hasattr(value, "__dataclass_fields__") else value
    return attributes


def decode(record: type[R], item: Mapping[str, Value], /, **decoded: object) -> R:
    """Return the record that ``item`` holds. ``decoded`` are the fields whose types attributes cannot have, such as enums."""
    stored = {name: item[name] for name in record.__dataclass_fields__ if name in item}
    return record(**{**stored, **decoded})
