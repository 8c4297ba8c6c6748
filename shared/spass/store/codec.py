"""Convert dataclasses to the attributes of an item, and back (``core.codec``)."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from spass.core.codec import Dataclass, WrongValue, broken_record, decode_record, encode_record
from spass.store.writes import Value

R = TypeVar("R", bound=Dataclass)


def encode(record: Dataclass, *, without: Collection[str] = ()) -> dict[str, Value]:
    """Return the attributes of ``record``, except ``without``, and without those that are None, so that conditions can test
    whether they exist."""
    return encode_record(record, without=without)


def decode(kind: type[R], item: Mapping[str, Any], /, **given: object) -> R:
    """Return the record that ``item`` holds, an item or a map in one. ``given`` are the fields that it does not hold. Raise
    ``InternalError`` if an attribute has another type than its field, or is missing. The log names the item and the attribute."""
    try:
        return decode_record(kind, item, **given)
    except WrongValue as error:
        place = " ".join(str(item[name]) for name in ("pk", "sk") if name in item)
        broken = broken_record(f"{kind.__name__} {place}", error)
        raise broken from broken.__cause__
