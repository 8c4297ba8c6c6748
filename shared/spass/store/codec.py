"""Convert dataclasses to the attributes of an item, and back (``core.codec``)."""

from collections.abc import Mapping
from typing import Any, TypeVar

from spass.core.codec import Dataclass, WrongValue, decode_record, encode_record
from spass.core.errors import InternalError, internal_error
from spass.store.attributes import Value

R = TypeVar("R", bound=Dataclass)


def encode(record: Dataclass) -> dict[str, Value]:
    """Return the attributes of ``record`` without those that are None, so that conditions can test whether they exist."""
    return encode_record(record)


def decode(kind: type[R], item: Mapping[str, Any], /, **given: object) -> R:
    """Return the record that ``item`` holds, an item or a map in one. ``given`` are the fields that it does not hold.

    Raises:
        InternalError: an attribute has another type than its field, or is missing. The log names the item and the attribute.
    """
    try:
        return decode_record(kind, item, **given)
    except WrongValue as error:
        place = " ".join(str(item[name]) for name in ("pk", "sk") if name in item)
        broken = InternalError(f"The stored {kind.__name__} {place}{error.path} {error.problem}.")
        raise internal_error(broken) from broken
