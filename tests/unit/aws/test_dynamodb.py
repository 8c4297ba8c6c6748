"""Test the parameters of the requests to DynamoDB, and the items of its answers."""

import asyncio
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

import pytest

from spass.aws.dynamodb import DynamoDBTable, attribute_of, item_of, parameters_of
from spass.aws.signing import KeySource
from spass.store.keys import Key
from spass.store.table import Query
from spass.store.writes import ITEM_ABSENT, Absent, AtMost, Check, Equals, Put, Update, Value

KEY = Key("T#demo#A", "B")
STORED_KEY = {"pk": {"S": KEY.pk}, "sk": {"S": KEY.sk}}


def test_names_and_values_become_placeholders() -> None:
    write = Update(KEY, set={"status": "done", "hold.owner": "me"}, remove=("name",), when=Equals("status", "running"))
    assert parameters_of(write) == {
        "Key": STORED_KEY,
        "UpdateExpression": "SET #n0 = :v0, #n1.#n2 = :v1 REMOVE #n3",
        "ConditionExpression": "#n0 = :v2",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        "ExpressionAttributeNames": {"#n0": "status", "#n1": "hold", "#n2": "owner", "#n3": "name"},
        "ExpressionAttributeValues": {":v0": {"S": "done"}, ":v1": {"S": "me"}, ":v2": {"S": "running"}},
    }


def test_conditions_nest() -> None:
    free = Equals("user", "ana") & (Absent("hold") | AtMost("hold.expires_at", 7))
    rendered = parameters_of(Check(KEY, free))["ConditionExpression"]
    assert rendered == "(#n0 = :v0 AND (attribute_not_exists(#n1) OR #n1.#n2 <= :v1))"


def test_adding_to_an_entry_of_a_map_becomes_a_sum() -> None:
    write = Update(KEY, add={"count": 1, "window.7": 2}, discard={"members": frozenset({"a"})}, default={"since": 3})
    assert parameters_of(write)["UpdateExpression"] == (
        "SET #n0 = if_not_exists(#n0, :v0), #n2.#n3 = #n2.#n3 + :v2 ADD #n1 :v1 DELETE #n4 :v3"
    )


def test_a_write_without_a_condition_has_no_condition_parameters() -> None:
    assert parameters_of(Put(KEY, {"n": 1})) == {"Item": {"n": {"N": "1"}} | STORED_KEY}
    assert parameters_of(Put(KEY, {}, ITEM_ABSENT))["ConditionExpression"] == "attribute_not_exists(#n0)"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "\ud83d",
        0,
        -7,
        10**37,
        Decimal("0.0001234"),
        Decimal("-1.5"),
        True,
        False,
        None,
        b"\x00\xff",
        frozenset({"a", "\u00df"}),
        [],
        ["a", 1, [None, {"b": b""}]],
        {},
        {"a": {"b": [True, Decimal("2.5")]}},
    ],
)
def test_a_stored_value_is_read_as_it_was_written(value: Value) -> None:
    read = item_of({"value": attribute_of(value)})["value"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(("text", "number"), [("007", 7), ("-0", 0), ("1E+3", 1000), ("2.0", 2), ("1.5E-2", Decimal("0.015"))])
def test_a_whole_number_is_an_int_in_every_notation(text: str, number: int | Decimal) -> None:
    read = item_of({"n": {"N": text}})["n"]
    assert read == number
    assert type(read) is type(number)


class LongPage:
    """A DynamoDB whose queries give 1,000 items at once."""

    async def call(
        self, operation: str, request: Mapping[str, object], expected: Collection[str] = (), keys: KeySource | None = None
    ) -> dict[str, Any]:
        return {"Items": [{"pk": {"S": KEY.pk}, "sk": {"S": str(number)}} for number in range(1000)]}


@pytest.mark.anyio
async def test_other_work_continues_while_a_long_page_is_read() -> None:
    query = asyncio.create_task(DynamoDBTable(LongPage(), "t").query(query=Query(KEY.pk)))
    pauses = 0
    while not query.done():
        await asyncio.sleep(0)
        pauses += 1
    assert [item["sk"] for item in query.result().value.items] == [str(number) for number in range(1000)]
    assert pauses > 4
