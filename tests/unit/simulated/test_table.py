"""The table in memory and the emulator's table give the same answers to all writes and reads.

This also tests the rendered expressions. The emulator's handlers are called in this process, without HTTP.
"""

import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from itertools import count
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.aws.dynamodb import DynamoDBTable
from spass.aws.dynamodb_client import RequestRefused
from spass.aws.signing import KeySource
from spass.core.errors import InternalError
from spass.store.keys import Key
from spass.store.table import ConditionFailed, Query, TableClient, TransactionFailed
from spass.store.writes import (
    Absent,
    AtMost,
    Check,
    Condition,
    Contains,
    Delete,
    Equals,
    Exists,
    HasSize,
    Item,
    Lacks,
    OneOf,
    Put,
    Update,
    Value,
    Write,
)
from spass.testing.table import MemoryTable, MemoryTableClient

TABLE: Final = {
    "TableName": "spass",
    "BillingMode": "PAY_PER_REQUEST",
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "S"}],
}
T = TypeVar("T")
EPOCH: Final = 1_800_000_000.0
_accounts = count()

NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([Decimal("1.5"), Decimal("-0.25"), 1_000_000]))
TEXTS = st.sampled_from(["", "a", "ab", "b", "ß", "Zoë"])
PLAIN: st.SearchStrategy[Value] = st.one_of(NUMBERS, TEXTS, st.sampled_from([True, False, None]))
MAPS = st.dictionaries(st.sampled_from(["x", "y", "owner"]), PLAIN, max_size=3)
VALUES: st.SearchStrategy[Value] = st.one_of(PLAIN, MAPS, st.lists(PLAIN, max_size=2))
MEMBERS = st.sampled_from(["x", "y", "z"])
SETS = st.frozensets(MEMBERS, min_size=1)
NAMES = ("a", "b", "ttl")
# ``hold`` is a map or absent, ``n`` a number, ``s`` a set. The emulator accepts updates of values of other types that the service
# refuses.
INNER = st.sampled_from(["hold.x", "hold.owner"])
PATHS = st.one_of(st.sampled_from([*NAMES, "hold", "a.x"]), INNER)
KEYS = st.builds(Key, st.sampled_from(["T#1", "T#2"]), st.sampled_from(["A", "B#1", "B#2", "B"]))

CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    st.one_of(
        st.builds(Exists, PATHS),
        st.builds(Absent, PATHS),
        st.builds(Equals, PATHS, VALUES),
        st.builds(AtMost, PATHS, st.one_of(NUMBERS, TEXTS)),
        st.builds(OneOf, PATHS, st.lists(PLAIN, min_size=1, max_size=3)),
        st.builds(Contains, st.just("s"), MEMBERS),
        st.builds(Lacks, st.just("s"), MEMBERS),
        st.builds(HasSize, st.just("s"), st.integers(0, 3)),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda both: both[0] & both[1]), st.tuples(inner, inner).map(lambda both: both[0] | both[1])
    ),
    max_leaves=4,
)
WHEN = st.one_of(st.none(), CONDITIONS)


@st.composite
def updates(draw: st.DrawFn) -> Update:
    parts: dict[str, dict[str, Any]] = {"set": {}, "default": {}, "add": {}, "discard": {}}
    removed: list[str] = []
    match draw(st.sampled_from(["keep", "keep", "keep", "take", "renew", "release"])):
        case "take":
            parts["set"]["hold"] = draw(MAPS)
        case "renew":
            parts["set"][draw(INNER)] = draw(PLAIN)
        case "release":
            removed.append("hold")
    if draw(st.booleans()):
        parts[draw(st.sampled_from(["add", "discard"]))]["s"] = draw(SETS)
    changed = any(parts.values()) or removed
    for name in draw(st.lists(st.sampled_from((*NAMES, "n")), min_size=0 if changed else 1, max_size=3, unique=True)):
        match draw(st.sampled_from(["add"] if name == "n" else ["set", "set", "default", "remove"])):
            case "add":
                parts["add"][name] = draw(NUMBERS)
            case "remove":
                removed.append(name)
            case part:
                parts[part][name] = draw(VALUES)
    return Update(draw(KEYS), **parts, remove=tuple(removed), when=draw(WHEN))


SPECIAL = st.fixed_dictionaries({}, optional={"m": MAPS, "hold": MAPS, "s": SETS, "n": NUMBERS})
ATTRIBUTES = st.tuples(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3), SPECIAL).map(
    lambda both: {**both[0], **both[1]}
)
SINGLE: st.SearchStrategy[Put | Update | Delete] = st.one_of(
    st.builds(Put, KEYS, ATTRIBUTES, WHEN), updates(), st.builds(Delete, KEYS, WHEN)
)
WRITES: st.SearchStrategy[Write] = st.one_of(SINGLE, st.builds(Check, KEYS, CONDITIONS))


@st.composite
def queries(draw: st.DrawFn) -> Query:
    prefix, starts = draw(st.sampled_from([("", ["A", "B", "B#1", "C"]), ("B", ["B", "B#1"]), ("B#", ["B#1"])]))
    after = draw(st.one_of(st.none(), st.sampled_from(starts)))
    limit = draw(st.one_of(st.none(), st.integers(1, 3)))
    return Query(draw(st.sampled_from(["T#1", "T#2"])), prefix, after, limit, draw(st.booleans()))


STEPS = st.lists(
    st.one_of(
        SINGLE.map(lambda write: ("write", {"write": write})),
        SINGLE.map(lambda write: ("write", {"write": write})),
        st.tuples(st.lists(WRITES, min_size=1, max_size=3), st.sampled_from(["t1", "t2", "t3"])).map(
            lambda both: ("transact", {"writes": both[0], "token": both[1]})
        ),
        queries().map(lambda query: ("query", {"query": query})),
        KEYS.map(lambda key: ("get", {"key": key, "consistent": True})),
    ),
    min_size=1,
    max_size=12,
)


class EmulatedClient:
    """ministack's table as a ``ServiceClient``. Each client has its own account and therefore its own table."""

    def __init__(self) -> None:
        from ministack.core.responses import request_scope  # type: ignore[import-untyped]
        from ministack.services import dynamodb  # type: ignore[import-untyped]

        account = f"{next(_accounts):012d}"
        self._scope: Callable[[], AbstractContextManager[None]] = lambda: request_scope(account, "eu-central-1")
        self._handlers: Mapping[str, Callable[[dict[str, Any]], tuple[int, object, bytes]]] = {
            "GetItem": dynamodb._get_item,
            "Query": dynamodb._query,
            "PutItem": dynamodb._put_item,
            "UpdateItem": dynamodb._update_item,
            "DeleteItem": dynamodb._delete_item,
            "TransactWriteItems": dynamodb._transact_write_items,
        }
        with self._scope():
            create_table: Callable[[dict[str, Any]], object] = dynamodb._create_table
            create_table(dict(TABLE))

    async def call(
        self, operation: str, request: Mapping[str, object], expected: Collection[str] = (), keys: KeySource | None = None
    ) -> dict[str, Any]:
        with self._scope():
            status, _, body = self._handlers[operation](json.loads(json.dumps(request)))
        answer: dict[str, Any] = json.loads(body)
        if status == 200:
            return answer
        if answer["__type"] in expected:
            raise RequestRefused(answer["__type"], answer)
        raise InternalError(f"The storage refused a request of ours ({answer['__type']}).")


def emulated() -> TableClient:
    return DynamoDBTable(EmulatedClient(), "spass")


def in_memory() -> TableClient:
    return MemoryTableClient(MemoryTable(lambda: EPOCH))


def complete(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call that waits for nothing, without an event loop."""
    try:
        while True:
            call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result


BOTH: Final = (in_memory, emulated)


def answer(table: TableClient, method: str, parameters: Mapping[str, Any]) -> object:
    """Return the reply or the error of one request. Keep the units of single writes only: the emulator counts the same units for
    every read and for a repeated transaction."""
    try:
        reply = complete(getattr(table, method)(**parameters))
    except ConditionFailed as failure:
        return "condition failed", failure.item
    except TransactionFailed as failure:
        return "transaction failed", failure.failures
    except InternalError:
        return "refused"
    return reply if method == "write" else reply.value


def contents(table: TableClient) -> list[Item]:
    return [item for pk in ("T#1", "T#2") for item in complete(table.query(query=Query(pk))).value.items]


@given(steps=STEPS)
def test_both_tables_give_the_same_answer_to_every_request(steps: list[tuple[str, dict[str, Any]]]) -> None:
    memory, emulator = in_memory(), emulated()
    for method, parameters in steps:
        assert answer(memory, method, parameters) == answer(emulator, method, parameters), (method, parameters)
        assert contents(memory) == contents(emulator), (method, parameters)


def put(table: TableClient, attributes: Mapping[str, Value], sk: str = "A") -> object:
    return answer(table, "write", {"write": Put(Key("T#1", sk), attributes)})


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(("characters", "fits"), [(400 * 1024 - 30, True), (400 * 1024, False)])
def test_an_item_has_at_most_400_kb(make: Callable[[], TableClient], characters: int, fits: bool) -> None:
    table = make()
    assert (put(table, {"text": "x" * characters}) != "refused") == fits
    assert len(contents(table)) == fits


@pytest.mark.parametrize("make", BOTH)
def test_a_page_of_a_query_has_at_most_one_megabyte(make: Callable[[], TableClient]) -> None:
    table = make()
    for sk in "ABCD":
        put(table, {"text": "x" * 300_000}, sk)
    page = complete(table.query(query=Query("T#1"))).value
    assert [item["sk"] for item in page.items] == ["A", "B", "C"]
    assert page.last == "C"


def test_a_token_identifies_one_transaction_for_ten_minutes() -> None:
    now = EPOCH
    table = MemoryTableClient(MemoryTable(lambda: now))

    def transact(text: str) -> object:
        return answer(table, "transact", {"writes": [Put(Key("T#1", "A"), {"text": text})], "token": "the token"})

    transact("first")
    put(table, {"text": "later"})
    assert transact("first") is None
    assert [item["text"] for item in contents(table)] == ["later"]
    assert transact("second") == "refused"
    now += 600
    assert transact("second") is None
    assert [item["text"] for item in contents(table)] == ["second"]


@pytest.mark.parametrize("make", BOTH)
def test_a_transaction_has_at_most_100_writes_and_one_per_item(make: Callable[[], TableClient]) -> None:
    table = make()

    def transact(writes: Sequence[Write]) -> object:
        return answer(table, "transact", {"writes": writes, "token": f"of {len(writes)}"})

    puts = [Put(Key("T#1", f"{number}"), {}) for number in range(101)]
    assert transact(puts) == "refused"
    assert transact(puts[:100]) is None
    assert transact([puts[0], puts[0]]) == "refused"


def test_a_later_write_does_not_change_an_item_that_was_read() -> None:
    table = in_memory()
    key = Key("T#1", "A")
    put(table, {"hold": {"owner": "me"}})
    before = complete(table.get(key=key, consistent=True)).value
    complete(table.write(write=Update(key, set={"hold.owner": "you"})))
    assert before is not None
    assert before["hold"] == {"owner": "me"}
    assert contents(table)[0]["hold"] == {"owner": "you"}
