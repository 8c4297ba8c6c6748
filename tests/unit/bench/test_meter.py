"""What a bench says about capacity is what DynamoDB would bill."""

import asyncio
from collections.abc import Mapping

import pytest

from bench.meter import record_calls
from spass.aws.faults import AwsCall, invoke

KIBIBYTE = 1024


def item(size: int) -> dict[str, object]:
    """An item of so many bytes: a name of two and a text."""
    return {"pk": {"S": "x" * (size - 2)}}


def read_units(operation: str, response: Mapping[str, object]) -> float:
    async def read() -> None:
        await invoke(AwsCall("dynamodb", operation, {}), lambda: response)

    with record_calls() as meter:
        asyncio.run(read())
    return meter.read_units


def test_a_unit_reads_four_kibibytes() -> None:
    assert read_units("GetItem", {"Item": item(4 * KIBIBYTE)}) == 1
    assert read_units("GetItem", {"Item": item(4 * KIBIBYTE + 1)}) == 2


def test_what_is_not_there_costs_a_unit_too() -> None:
    assert read_units("GetItem", {}) == 1
    assert read_units("Query", {"Items": []}) == 1


def test_a_query_is_rounded_up_once_over_all_its_items() -> None:
    assert read_units("Query", {"Items": [item(KIBIBYTE)] * 6}) == 2


@pytest.mark.parametrize(
    ("attribute", "size"),
    [
        ({"S": "äöü"}, 6),
        ({"N": "-12.345"}, 4),
        ({"B": b"abc"}, 3),
        ({"BOOL": True}, 1),
        ({"NULL": True}, 1),
        ({"L": [{"S": "ab"}, {"N": "1"}]}, 3 + 1 + 2 + 1 + 2),
        ({"M": {"ab": {"S": "abc"}}}, 3 + 1 + 2 + 3),
    ],
)
def test_values_have_the_sizes_that_are_documented(attribute: Mapping[str, object], size: int) -> None:
    filling = 4 * KIBIBYTE - size - len("filling") - len("v")
    assert read_units("GetItem", {"Item": {"v": attribute, "filling": {"S": "x" * filling}}}) == 1
    assert read_units("GetItem", {"Item": {"v": attribute, "filling": {"S": "x" * (filling + 1)}}}) == 2


def test_units_of_reading_and_of_writing_are_kept_apart() -> None:
    async def work() -> None:
        await invoke(AwsCall("dynamodb", "PutItem", {}), lambda: {"ConsumedCapacity": {"CapacityUnits": 3.0}})
        await invoke(AwsCall("dynamodb", "GetItem", {}), lambda: {"ConsumedCapacity": {"CapacityUnits": 1.0}})
        await invoke(AwsCall("sqs", "SendMessage", {}), dict)

    with record_calls() as meter:
        asyncio.run(work())
    assert (meter.read_units, meter.write_units) == (1, 3)
    assert meter.counted() == {("dynamodb", "PutItem"): 1, ("dynamodb", "GetItem"): 1, ("sqs", "SendMessage"): 1}
