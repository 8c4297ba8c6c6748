"""The table in memory is the emulator's table: whatever is written and asked for in the form our code uses, both answer alike.

The emulator's handlers are called in this process, without HTTP.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from tests.simulated.dynamodb import MemoryDynamoDB

TABLE: Final = {
    "TableName": "spass",
    "BillingMode": "PAY_PER_REQUEST",
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "S"}],
}
EPOCH: Final = 1_800_000_000.0
_runs = count()

NUMBERS = st.one_of(st.integers(-3, 3).map(str), st.sampled_from(["1.5", "-0.25", "1000000"]))
TEXTS = st.sampled_from(["", "a", "ab", "b", "ß", "Zoë"])
PLAIN = st.one_of(
    NUMBERS.map(lambda number: {"N": number}),
    TEXTS.map(lambda text: {"S": text}),
    st.sampled_from([{"BOOL": True}, {"BOOL": False}, {"NULL": True}]),
)
# What has a size. Of others the emulator makes one up.
SIZED = st.one_of(TEXTS.map(lambda text: {"S": text}), st.lists(PLAIN, max_size=3).map(lambda held: {"L": held}))
ORDERED = st.one_of(NUMBERS.map(lambda number: {"N": number}), TEXTS.map(lambda text: {"S": text}))
MAPS = st.dictionaries(st.sampled_from(["x", "y", "owner"]), PLAIN, max_size=3).map(lambda held: {"M": held})
VALUES = st.one_of(PLAIN, MAPS, st.lists(PLAIN, max_size=2).map(lambda held: {"L": held}))
MEMBERS = st.sampled_from(["x", "y", "z"])
SETS = st.frozensets(MEMBERS, min_size=1).map(lambda members: {"SS": sorted(members)})
NAMES = ("a", "b", "ttl")
# ``hold`` is a map or absent, ``n`` a number, ``s`` a set: into anything else the emulator writes, and adds, where the service
# refuses to.
INNER = st.sampled_from([("hold", "x"), ("hold", "owner")])
PATHS = st.one_of(st.sampled_from([(name,) for name in (*NAMES, "hold")]), INNER, st.just(("a", "x")))
KEYS = st.tuples(st.sampled_from(["T#1", "T#2"]), st.sampled_from(["A", "B#1", "B#2", "B"]))


def key(where: tuple[str, str]) -> dict[str, Any]:
    return {"pk": {"S": where[0]}, "sk": {"S": where[1]}}


class ExpressionCase:
    """An expression with its placeholders. Every name has one, so that none is a reserved word."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def path(self, parts: Sequence[str]) -> str:
        return ".".join(self.names.setdefault(f"#{part}", part) and f"#{part}" for part in parts)

    def value(self, value: Mapping[str, Any]) -> str:
        name = f":v{len(self.values)}"
        self.values[name] = value
        return name

    def call(self, **more: Any) -> dict[str, Any]:
        placeholders = {"ExpressionAttributeNames": self.names, "ExpressionAttributeValues": self.values}
        return more | {name: given for name, given in placeholders.items() if given}


@st.composite
def terms(draw: st.DrawFn, written: ExpressionCase, depth: int = 0) -> str:
    kind = draw(
        st.sampled_from(["exists", "compare", "compare", "size", "in", "contains", *(["or", "and"] if depth < 2 else [])])
    )
    match kind:
        case "or":
            return f"({draw(terms(written, depth + 1))} OR {draw(terms(written, depth + 1))})"
        case "and":
            return f"{draw(terms(written, depth + 1))} AND {draw(terms(written, depth + 1))}"
        case "exists":
            function = draw(st.sampled_from(["attribute_exists", "attribute_not_exists"]))
            return f"{function}({written.path(draw(PATHS))})"
        case "in":
            choices = [written.value(value) for value in draw(st.lists(PLAIN, min_size=1, max_size=3))]
            return f"{written.path(draw(PATHS))} IN ({', '.join(choices)})"
        case "contains":
            negation = draw(st.sampled_from(["", "NOT "]))
            return f"{negation}contains({written.path(('s',))}, {written.value({'S': draw(MEMBERS)})})"
        case "size":
            measured = f"size({written.path((draw(st.sampled_from('ms')),))})"
            return f"{measured} {draw(st.sampled_from(['<', '=']))} {written.value({'N': draw(NUMBERS)})}"
        case _:
            comparison = draw(st.sampled_from(["=", "<", "<=", ">", ">="]))
            value = draw(
                VALUES if comparison == "=" else st.one_of(NUMBERS.map(lambda n: {"N": n}), TEXTS.map(lambda t: {"S": t}))
            )
            return f"{written.path(draw(PATHS))} {comparison} {written.value(value)}"


@st.composite
def updates(draw: st.DrawFn, written: ExpressionCase) -> str:
    clauses: dict[str, list[str]] = {}
    match draw(st.sampled_from(["keep", "keep", "keep", "take", "renew", "let go"])):
        case "take":
            clauses["SET"] = [f"{written.path(('hold',))} = {written.value(draw(MAPS))}"]
        case "renew":
            clauses["SET"] = [f"{written.path(draw(INNER))} = {written.value(draw(PLAIN))}"]
        case "let go":
            clauses["REMOVE"] = [written.path(("hold",))]
    if draw(st.booleans()):
        clauses[draw(st.sampled_from(["ADD", "DELETE"]))] = [f"{written.path(('s',))} {written.value(draw(SETS))}"]
    for name in draw(st.lists(st.sampled_from((*NAMES, "n")), min_size=0 if clauses else 1, max_size=3, unique=True)):
        where = written.path((name,))
        match draw(st.sampled_from(["count", "add"] if name == "n" else ["set", "set", "sum", "default", "remove"])):
            case "set":
                clauses.setdefault("SET", []).append(f"{where} = {written.value(draw(VALUES))}")
            case "sum":
                sign = draw(st.sampled_from(["+", "-"]))
                sum_ = f"{written.path(('n',))} {sign} {written.value({'N': draw(NUMBERS)})}"
                clauses.setdefault("SET", []).append(f"{where} = {sum_}")
            case "default":
                clauses.setdefault("SET", []).append(f"{where} = if_not_exists({where}, {written.value(draw(VALUES))})")
            case "count":
                none, one = written.value({"N": "0"}), written.value({"N": draw(NUMBERS)})
                clauses.setdefault("SET", []).append(f"{where} = if_not_exists({where}, {none}) + {one}")
            case "remove":
                clauses.setdefault("REMOVE", []).append(where)
            case _:
                clauses.setdefault("ADD", []).append(f"{where} {written.value({'N': draw(NUMBERS)})}")
    return " ".join(f"{clause} {', '.join(actions)}" for clause, actions in clauses.items())


@st.composite
def writes(draw: st.DrawFn, kinds: Sequence[str] = ("Put", "Update", "Delete")) -> tuple[str, dict[str, Any]]:
    kind, where, written = draw(st.sampled_from(kinds)), draw(KEYS), ExpressionCase()
    call: dict[str, Any] = {"TableName": "spass"}
    if kind == "Put":
        special = {"m": st.one_of(SIZED, MAPS), "hold": MAPS, "s": SETS, "n": NUMBERS.map(lambda number: {"N": number})}
        held = draw(st.fixed_dictionaries({}, optional=special))
        call["Item"] = draw(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)) | held | key(where)
    else:
        call["Key"] = key(where)
    if kind == "Update":
        call["UpdateExpression"] = draw(updates(written))
    if kind == "ConditionCheck" or draw(st.booleans()):
        call["ConditionExpression"] = draw(terms(written))
        if draw(st.booleans()):
            call["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    return kind, written.call(**call)


@st.composite
def singles(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    kind, call = draw(writes())
    returned = {"Put": ["NONE"], "Update": ["NONE", "ALL_NEW"], "Delete": ["NONE", "ALL_OLD"]}[kind]
    return f"{kind}Item", call | {"ReturnValues": draw(st.sampled_from(returned)), "ReturnConsumedCapacity": "TOTAL"}


@st.composite
def transactions(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    actions = draw(st.lists(writes(("Put", "Update", "Delete", "ConditionCheck")), min_size=1, max_size=3))
    call: dict[str, Any] = {"TransactItems": [{kind: call} for kind, call in actions], "ReturnConsumedCapacity": "TOTAL"}
    return "TransactWriteItems", call | {"ClientRequestToken": draw(st.sampled_from(["t1", "t2", "t3"]))}


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    partition, values = draw(st.sampled_from(["T#1", "T#2"])), dict[str, Any]()
    call: dict[str, Any] = {"KeyConditionExpression": "pk = :pk", "TableName": "spass", "ConsistentRead": True}
    values[":pk"] = {"S": partition}
    starts = ["A", "B", "B#1", "C"]
    if draw(st.booleans()):
        call["KeyConditionExpression"] += " AND begins_with(sk, :prefix)"
        values[":prefix"] = {"S": draw(st.sampled_from(["B", "B#"]))}
        starts = [start for start in starts if start.startswith(values[":prefix"]["S"])]
    if draw(st.booleans()):
        call["ExclusiveStartKey"] = key((partition, draw(st.sampled_from(starts))))
    if draw(st.booleans()):
        call["Limit"] = draw(st.integers(1, 3))
    return "Query", call | {"ExpressionAttributeValues": values, "ScanIndexForward": draw(st.booleans())}


GETS = KEYS.map(lambda where: ("GetItem", {"TableName": "spass", "Key": key(where), "ConsistentRead": True}))
STEPS = st.lists(st.one_of(singles(), singles(), transactions(), queries(), GETS), min_size=1, max_size=12)


class Emulator:
    """ministack's own table, called as its HTTP layer calls it. Each has an account of its own, which is a table of its own."""

    def __init__(self) -> None:
        from ministack.core.responses import request_scope  # type: ignore[import-untyped]
        from ministack.services import dynamodb  # type: ignore[import-untyped]

        account = f"{next(_runs):012d}"
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

    def __call__(self, operation: str, call: Mapping[str, Any]) -> dict[str, Any]:
        with self._scope():
            status, _, body = self._handlers[operation](json.loads(json.dumps(call)))
        answer: dict[str, Any] = json.loads(body)
        if status != 200:
            return {"error": answer["__type"], "item": answer.get("Item"), "reasons": _reasons(answer)}
        return _answer(operation, answer)


class Memory:
    """The table in memory."""

    def __init__(self) -> None:
        self.now = EPOCH
        self.table = MemoryDynamoDB(lambda: self.now)
        self._methods = {
            "GetItem": self.table.get_item,
            "Query": self.table.query,
            "PutItem": self.table.put_item,
            "UpdateItem": self.table.update_item,
            "DeleteItem": self.table.delete_item,
            "TransactWriteItems": self.table.transact_write_items,
        }

    def __call__(self, operation: str, call: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return _answer(operation, self._methods[operation](**json.loads(json.dumps(call))))
        except ClientError as error:
            response: Any = error.response
            return {"error": response["Error"]["Code"], "item": response.get("Item"), "reasons": _reasons(response)}


def _reasons(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(reason["Code"], reason.get("Item")) for reason in answer.get("CancellationReasons", ())]


def _answer(operation: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared: the emulator counts the same units for every read, and for a transaction sent again."""
    counted = operation in ("PutItem", "UpdateItem", "DeleteItem")
    return {name: value for name, value in answer.items() if counted or name != "ConsumedCapacity"}


def stored(table: "Emulator | Memory") -> list[Any]:
    everything = []
    for partition in ("T#1", "T#2"):
        values = {":pk": {"S": partition}}
        call = {"TableName": "spass", "KeyConditionExpression": "pk = :pk", "ExpressionAttributeValues": values}
        everything += table("Query", call)["Items"]
    return everything


@given(steps=STEPS)
def test_both_tables_answer_every_call_alike(steps: list[tuple[str, dict[str, Any]]]) -> None:
    memory, emulator = Memory(), Emulator()
    for operation, call in steps:
        assert memory(operation, call) == emulator(operation, call), (operation, call)
        assert stored(memory) == stored(emulator), (operation, call)


def refused(memory: Memory, operation: str, call: Mapping[str, Any]) -> str:
    return str(memory(operation, call)["error"])


def put(attributes: Mapping[str, Any], where: tuple[str, str] = ("T#1", "A")) -> dict[str, Any]:
    return {"TableName": "spass", "Item": {**attributes, **key(where)}}


@pytest.mark.parametrize(("characters", "fits"), [(400 * 1024 - 30, True), (400 * 1024, False)])
def test_an_item_has_400_kb_at_the_most(characters: int, fits: bool) -> None:
    for table in (Memory(), Emulator()):
        answer = table("PutItem", put({"text": {"S": "x" * characters}}))
        assert answer.get("error") == (None if fits else "ValidationException")
        assert len(stored(table)) == fits


def test_a_page_of_a_query_has_a_megabyte_at_the_most() -> None:
    query = {"TableName": "spass", "KeyConditionExpression": "pk = :pk", "ExpressionAttributeValues": {":pk": {"S": "T#1"}}}
    pages = []
    for table in (Memory(), Emulator()):
        for sk in "ABCD":
            table("PutItem", put({"text": {"S": "x" * 300_000}}, ("T#1", sk)))
        pages.append(table("Query", query))
    assert pages[0] == pages[1]
    assert [item["sk"]["S"] for item in pages[0]["Items"]] == ["A", "B", "C"]


def transaction(text: str) -> dict[str, Any]:
    return {"TransactItems": [{"Put": put({"text": {"S": text}})}], "ClientRequestToken": "the token"}


def test_a_repeated_transaction_takes_effect_once_and_its_token_serves_no_other() -> None:
    memory = Memory()
    memory("TransactWriteItems", transaction("first"))
    memory("PutItem", put({"text": {"S": "later"}}))
    assert "error" not in memory("TransactWriteItems", transaction("first"))
    assert stored(memory) == [{"text": {"S": "later"}, **key(("T#1", "A"))}]
    assert refused(memory, "TransactWriteItems", transaction("second")) == "IdempotentParameterMismatchException"
    memory.now += 600
    assert "error" not in memory("TransactWriteItems", transaction("second"))
    assert stored(memory) == [{"text": {"S": "second"}, **key(("T#1", "A"))}]


def test_a_transaction_has_a_hundred_actions_at_the_most_and_one_on_an_item() -> None:
    for table in (Memory(), Emulator()):
        puts = [{"Put": put({}, ("T#1", f"{number}"))} for number in range(101)]
        assert table("TransactWriteItems", {"TransactItems": puts})["error"] == "ValidationException"
        assert "error" not in table("TransactWriteItems", {"TransactItems": puts[:100]})
        assert table("TransactWriteItems", {"TransactItems": [puts[0], puts[0]]})["error"] == "ValidationException"


@pytest.mark.parametrize(
    "condition",
    ["begins_with(a, :v)", "attribute_type(a, :v)", "a <> :v", "a = :v AND", "a BETWEEN :v AND :v", "a[0] = :v", "a = :v b"],
)
def test_what_it_does_not_know_it_refuses(condition: str) -> None:
    call = put({}) | {"ConditionExpression": condition, "ExpressionAttributeValues": {":v": {"N": "1"}}}
    with pytest.raises(AssertionError):
        Memory()("PutItem", call)


@pytest.mark.parametrize(
    "more",
    [
        {"Expected": {}},
        {"ConditionExpression": "a = :v", "ExpressionAttributeValues": {":v": {"N": "1"}, ":unused": {"N": "1"}}},
        {"ConditionExpression": "attribute_exists(#a)", "ExpressionAttributeNames": {"#a": "a", "#unused": "b"}},
    ],
)
def test_parameters_that_are_not_used_are_refused(more: Mapping[str, Any]) -> None:
    with pytest.raises(AssertionError):
        Memory()("PutItem", put({}) | dict(more))


def test_what_was_read_does_not_change_with_what_is_written_later() -> None:
    memory = Memory()
    memory("PutItem", put({"hold": {"M": {"owner": {"S": "me"}}}}))
    before = memory.table.get_item(TableName="spass", Key=key(("T#1", "A")))["Item"]
    values = {":you": {"S": "you"}}
    memory.table.update_item(
        TableName="spass",
        Key=key(("T#1", "A")),
        UpdateExpression="SET #hold.#owner = :you",
        ExpressionAttributeNames={"#hold": "hold", "#owner": "owner"},
        ExpressionAttributeValues=values,
    )
    assert before["hold"]["M"]["owner"] == {"S": "me"}
    assert stored(memory)[0]["hold"]["M"]["owner"] == {"S": "you"}
