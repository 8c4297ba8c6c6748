"""What a bench says about capacity is what DynamoDB would bill."""

import asyncio
from decimal import Decimal

import pytest

from bench.meter import record_calls
from spass.store.invocation import ServiceCall, invoke_blocking
from spass.store.table import Page, Reply
from spass.store.writes import Item, Value

KIBIBYTE = 1024


def item(size: int) -> Item:
    """An item of so many bytes: a name of two and a text."""
    return {"pk": "x" * (size - 2)}


def read_units(operation: str, value: Page | Item | None, **parameters: bool) -> float:
    async def read() -> None:
        await invoke_blocking(ServiceCall("dynamodb", operation, parameters), lambda: Reply(value, 1.0))

    with record_calls() as meter:
        asyncio.run(read())
    return meter.read_units


def test_a_unit_reads_four_kibibytes() -> None:
    assert read_units("GetItem", item(4 * KIBIBYTE)) == 1
    assert read_units("GetItem", item(4 * KIBIBYTE + 1)) == 2


def test_a_read_that_is_eventually_consistent_costs_half() -> None:
    assert read_units("GetItem", item(4 * KIBIBYTE + 1), consistent=False) == 1


def test_what_is_not_there_costs_a_unit_too() -> None:
    assert read_units("GetItem", None) == 1
    assert read_units("Query", Page([], None)) == 1


def test_a_query_is_rounded_up_once_over_all_its_items() -> None:
    assert read_units("Query", Page([item(KIBIBYTE)] * 6, None)) == 2


@pytest.mark.parametrize(
    ("attribute", "size"),
    [
        ("äöü", 6),
        (Decimal("-12.345"), 4),
        (b"abc", 3),
        (True, 1),
        (None, 1),
        (["ab", 1], 3 + 1 + 2 + 1 + 2),
        ({"ab": "abc"}, 3 + 1 + 2 + 3),
    ],
)
def test_values_have_the_sizes_that_are_documented(attribute: Value, size: int) -> None:
    filling = 4 * KIBIBYTE - size - len("filling") - len("v")
    assert read_units("GetItem", {"v": attribute, "filling": "x" * filling}) == 1
    assert read_units("GetItem", {"v": attribute, "filling": "x" * (filling + 1)}) == 2


def test_units_of_reading_and_of_writing_are_kept_apart() -> None:
    async def work() -> None:
        await invoke_blocking(ServiceCall("dynamodb", "PutItem", {}), lambda: Reply(None, 3.0))
        await invoke_blocking(ServiceCall("dynamodb", "GetItem", {}), lambda: Reply(None, 1.0))
        await invoke_blocking(ServiceCall("sqs", "SendMessage", {}), dict)

    with record_calls() as meter:
        asyncio.run(work())
    assert (meter.read_units, meter.write_units) == (1, 3)
    assert meter.counted() == {("dynamodb", "PutItem"): 1, ("dynamodb", "GetItem"): 1, ("sqs", "SendMessage"): 1}


def test_bytes_that_enter_and_leave_the_bucket_are_counted() -> None:
    async def work() -> None:
        await invoke_blocking(ServiceCall("s3", "PutObject", {"Body": b"12345"}), dict)
        await invoke_blocking(ServiceCall("s3", "GetObject", {}), lambda: b"678")

    with record_calls() as meter:
        asyncio.run(work())
    assert meter.bucket_bytes == 8
