"""Measure the AWS usage of a piece of work: its calls, the capacity units of the table as DynamoDB counts them, and bytes of the
bucket."""

import math
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from spass.aws.dynamodb import attribute_of
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.table import Page, Query, Reply
from spass.store.writes import Item
from spass.testing.faults import FaultPlan, inject

T = TypeVar("T")

READS: Final = frozenset({"GetItem", "Query"})
_READ_UNIT: Final = 4096  # bytes
_NUMBER_BYTES: Final = 2  # per pair of digits, and one more


@dataclass(frozen=True, slots=True)
class MeteredCall:
    """One call, the read or write units that it used, and the bytes that it put into the bucket or got out of it."""

    service: str
    operation: str
    units: float
    bucket_bytes: int = 0

    @property
    def reads(self) -> bool:
        return self.operation in READS


@dataclass(slots=True)
class Meter(FaultPlan):
    """Records every call with its units.

    Reads are counted here, from the items that came back (https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/
    CapacityUnitCalculations.html): the emulator says 1 for each, however large. Writes are as the emulator says, by size.
    """

    made: list[MeteredCall] = field(default_factory=list)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        # Named, not super(): the decorator of a slotted dataclass creates a second class, and super() would look in the first.
        result = await FaultPlan.around(self, call, run)
        said = self.capacity[-1]
        units = _read_units(call, result) if call.operation in READS else said
        self.made.append(MeteredCall(call.service, call.operation, units, _bucket_bytes(call, result)))
        return result

    @property
    def read_units(self) -> float:
        return sum(made.units for made in self.made if made.reads)

    @property
    def write_units(self) -> float:
        return sum(made.units for made in self.made if not made.reads)

    @property
    def bucket_bytes(self) -> int:
        return sum(made.bucket_bytes for made in self.made)

    def counted(self) -> "Counter[tuple[str, str]]":
        return Counter((made.service, made.operation) for made in self.made)


@contextmanager
def record_calls() -> Iterator[Meter]:
    """Record the calls of the block."""
    meter = Meter()
    with inject(meter):
        yield meter


def _read_units(call: ServiceCall, response: object) -> float:
    """Return the units of a read: at least one, for the size of all items together, and half of that if it is not consistent."""
    value = cast("Reply[Page | Item | None]", response).value
    items = value.items if isinstance(value, Page) else [value] if value else []
    size = sum(bytes_of_item({name: attribute_of(held) for name, held in item.items()}) for item in items)
    query = call.parameters.get("query")
    is_consistent = query.consistent if isinstance(query, Query) else call.parameters.get("consistent", True)
    return max(1.0, math.ceil(size / _READ_UNIT)) * (1.0 if is_consistent else 0.5)


def _bucket_bytes(call: ServiceCall, response: object) -> int:
    body = {"GetObject": response, "PutObject": call.parameters.get("Body")}.get(call.operation)
    return len(body) if isinstance(body, bytes) else 0


def bytes_of_item(item: Mapping[str, object]) -> int:
    """Return the size of an item in the client's format, in bytes. DynamoDB bills by it."""
    return sum(len(name.encode()) + _bytes_of(value) for name, value in item.items())


def _bytes_of(attribute: object) -> int:
    """Return the bytes of an attribute's value in DynamoDB's format, such as ``{"S": "…"}``."""
    [(kind, value)] = cast("Mapping[str, object]", attribute).items()
    match kind, value:
        case "M", dict():
            return 3 + len(value) + bytes_of_item(value)
        case "L", list():
            return 3 + sum(1 + _bytes_of(entry) for entry in value)
        case "S", str():
            return len(value.encode())
        case "N", str():
            return math.ceil(len(value.lstrip("-").replace(".", "")) / _NUMBER_BYTES) + 1
        case "SS", list():
            return 3 + sum(1 + len(entry.encode()) for entry in value)
        case "B", str():  # base64
            return len(b64decode(value))
    return 1
