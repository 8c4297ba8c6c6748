"""The one table in memory, behind the calls of boto3's client that ``spass.aws.table`` makes. Each call is one step.

Fast, so that a test can make a hundred thousand of them; ``tests/unit/simulated`` holds it to an emulator. It knows no conflicts
of transactions, since nothing is ever half done; a schedule makes them up.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

from botocore.exceptions import ClientError

from tests.simulated.expressions import Attribute, Attributes, Condition, InvalidUpdate, Update, condition_of, update_of

Response: TypeAlias = dict[str, Any]
Call: TypeAlias = Mapping[str, Any]

ITEM_BYTES: Final = 400 * 1024
PAGE_BYTES: Final = 2**20
TRANSACTION_ITEMS: Final = 100
TRANSACTION_BYTES: Final = 4 * 2**20
TOKEN_SECONDS: Final = 600

_EXPRESSIONS: Final = frozenset({"ExpressionAttributeNames", "ExpressionAttributeValues"})
_CONDITION: Final = _EXPRESSIONS | {"ConditionExpression", "ReturnValuesOnConditionCheckFailure"}
_CALL: Final = frozenset({"TableName", "ReturnConsumedCapacity"})
_GET: Final = _CALL | {"Key", "ConsistentRead"}
_QUERY: Final = _GET | {"KeyConditionExpression", "ExpressionAttributeValues", "ScanIndexForward", "ExclusiveStartKey", "Limit"}
_PUT: Final = _CALL | _CONDITION | {"Item", "ReturnValues"}
_UPDATE: Final = _CALL | _CONDITION | {"Key", "UpdateExpression", "ReturnValues"}
_DELETE: Final = _CALL | _CONDITION | {"Key", "ReturnValues"}
_TRANSACT: Final = frozenset({"TransactItems", "ClientRequestToken", "ReturnConsumedCapacity"})
_ACTIONS: Final = {"Put": _PUT, "Update": _UPDATE, "Delete": _DELETE, "ConditionCheck": _DELETE}
# Which keys a query may ask for.
_WHOLE_PARTITION: Final = "pk = :pk"
_BY_PREFIX: Final = "pk = :pk AND begins_with(sk, :prefix)"


@dataclass(frozen=True, slots=True)
class _Stored:
    """An item as it lies in the table; nobody changes it. ``size`` is in bytes."""

    attributes: Attributes
    size: int


@dataclass(slots=True)
class _Partition:
    """Items by sort key, and the sort keys in order: of UTF-8's bytes, which is that of code points."""

    items: dict[str, _Stored] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Change:
    """What a write will do, once it is known that it may: ``after`` takes the place of ``before``."""

    pk: str
    sk: str
    before: _Stored | None
    after: _Stored | None

    @property
    def units(self) -> int:
        return _kilobytes(max(self.before.size if self.before else 0, self.after.size if self.after else 0), 1024)


class _Refused(Exception):
    """A condition did not hold; ``item`` is what the caller wants to see of it."""

    def __init__(self, item: Attributes | None) -> None:
        super().__init__()
        self.item = item


class MemoryDynamoDB:
    """``clock`` gives seconds since the epoch: transactions are known by their tokens for ten minutes. ``watch`` sees each item
    before and after each write that takes effect."""

    def __init__(self, clock: Callable[[], float], table: str = "spass") -> None:
        self._clock = clock
        self._table = table
        self._partitions: dict[str, _Partition] = {}
        self._tokens: dict[str, tuple[float, Sequence[Any]]] = {}
        self.watch: Callable[[Attributes | None, Attributes | None], None] = lambda before, after: None

    def items(self) -> Iterator[Attributes]:
        """Everything stored, in no order."""
        for partition in self._partitions.values():
            for stored in partition.items.values():
                yield stored.attributes

    def get_item(self, **call: Any) -> Response:
        self._known(call, _GET)
        pk, sk = _key(call["Key"])
        stored = self._stored(pk, sk)
        units = _kilobytes(stored.size if stored else 0, 4096) * (1.0 if call.get("ConsistentRead") else 0.5)
        return ({"Item": stored.attributes} if stored else {}) | self._consumed(units)

    def query(self, **call: Any) -> Response:
        self._known(call, _QUERY)
        values: Mapping[str, Any] = call["ExpressionAttributeValues"]
        expression = call["KeyConditionExpression"]
        assert set(values) == {_WHOLE_PARTITION: {":pk"}, _BY_PREFIX: {":pk", ":prefix"}}.get(expression), expression
        partition = self._partitions.get(values[":pk"]["S"], _NOTHING)
        found = _in_range(partition.order, values.get(":prefix", {}).get("S", ""), call)
        page, size = list[Attributes](), 0
        for stored in map(partition.items.__getitem__, found):
            if len(page) == call.get("Limit") or (page and size + stored.size > PAGE_BYTES):
                break
            size += stored.size
            page.append(stored.attributes)
        more = page and (len(page) < len(found) or len(page) == call.get("Limit"))
        next_page = {"LastEvaluatedKey": {name: page[-1][name] for name in ("pk", "sk")}} if more else {}
        units = _kilobytes(size, 4096) * (1.0 if call.get("ConsistentRead") else 0.5)
        return {"Items": page, "Count": len(page), "ScannedCount": len(page)} | next_page | self._consumed(units)

    def put_item(self, **call: Any) -> Response:
        return self._write("PutItem", "Put", call, {"NONE": lambda change: None})

    def update_item(self, **call: Any) -> Response:
        return self._write("UpdateItem", "Update", call, {"NONE": lambda change: None, "ALL_NEW": lambda change: change.after})

    def delete_item(self, **call: Any) -> Response:
        return self._write("DeleteItem", "Delete", call, {"NONE": lambda change: None, "ALL_OLD": lambda change: change.before})

    def transact_write_items(self, **call: Any) -> Response:
        assert call.keys() <= _TRANSACT, call.keys()
        actions = call["TransactItems"]
        if self._sent_before(call.get("ClientRequestToken"), actions):
            return self._consumed(0.0, listed=True)
        changes, reasons = self._changes(actions)
        if any(reason["Code"] != "None" for reason in reasons):
            codes = ", ".join(reason["Code"] for reason in reasons)
            message = f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]"
            _refuse("TransactWriteItems", "TransactionCanceledException", message, CancellationReasons=reasons)
        for change in changes:
            self._make(change)
        if token := call.get("ClientRequestToken"):
            self._tokens[token] = (self._clock(), actions)
        return self._consumed(float(sum(2 * change.units for change in changes)), listed=True)

    def _changes(self, actions: Sequence[Call]) -> tuple[list[_Change], list[Response]]:
        """What each action will do, and why it will not."""
        if not 1 <= len(actions) <= TRANSACTION_ITEMS:
            _refuse("TransactWriteItems", "ValidationException", "Member must have length between 1 and 100")
        keys, changes, reasons = set[tuple[str, str]](), list[_Change](), list[Response]()
        for action in actions:
            ((kind, call),) = action.items()
            keys.add(_key_of(kind, call))
            try:
                changes.append(self._change("TransactWriteItems", kind, call))
                reasons.append({"Code": "None"})
            except _Refused as refused:
                reason = {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed"}
                reasons.append(reason | ({"Item": refused.item} if refused.item is not None else {}))
            except InvalidUpdate as invalid:
                reasons.append({"Code": "ValidationError", "Message": str(invalid)})
        if len(keys) < len(actions):
            message = "Transaction request cannot include multiple operations on one item"
            _refuse("TransactWriteItems", "ValidationException", message)
        if sum(change.after.size for change in changes if change.after) > TRANSACTION_BYTES:
            _refuse("TransactWriteItems", "ValidationException", "Transaction request exceeds the 4MB transaction size limit")
        return changes, reasons

    def _sent_before(self, token: str | None, actions: Sequence[Any]) -> bool:
        at, sent = self._tokens.get(token or "", (-math.inf, []))
        if self._clock() - at >= TOKEN_SECONDS:
            return False
        if sent != actions:
            message = "Request token already in use for another request with a different payload"
            _refuse("TransactWriteItems", "IdempotentParameterMismatchException", message)
        return True

    def _write(
        self, operation: str, kind: str, call: Call, returned: Mapping[str, Callable[[_Change], _Stored | None]]
    ) -> Response:
        answer = returned[call.get("ReturnValues", "NONE")]
        try:
            change = self._change(operation, kind, call)
        except _Refused as refused:
            shown = {"Item": refused.item} if refused.item is not None else {}
            _refuse(operation, "ConditionalCheckFailedException", "The conditional request failed", **shown)
        except InvalidUpdate as invalid:
            _refuse(operation, "ValidationException", str(invalid))
        self._make(change)
        stored = answer(change)
        return ({"Attributes": stored.attributes} if stored else {}) | self._consumed(float(change.units))

    def _change(self, operation: str, kind: str, call: Call) -> _Change:
        """What this write will do, if its condition holds.

        Raises:
            _Refused: it does not.
            InvalidUpdate: the update does not fit the item.
        """
        self._known(call, _ACTIONS[kind])
        pk, sk = _key_of(kind, call)
        before = self._stored(pk, sk)
        item = before.attributes if before else {}
        condition, update = _expressions(call)
        values = call.get("ExpressionAttributeValues", {})
        if condition is not None and not condition.holds(item, values):
            asked = call.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
            raise _Refused(before.attributes if before and asked else None)
        match kind:
            case "Put":
                after: Attributes | None = call["Item"]
            case "Update":
                assert update is not None, "an update without an expression"
                after = update.apply(item or call["Key"], values)
                assert (after["pk"]["S"], after["sk"]["S"]) == (pk, sk), "an update may not change a key"
            case "Delete":
                after = None
            case _:
                return _Change(pk, sk, before, before)
        size = _item_bytes(after) if after is not None else 0
        if size > ITEM_BYTES:
            _refuse(operation, "ValidationException", "Item size has exceeded the maximum allowed size")
        return _Change(pk, sk, before, _Stored(after, size) if after is not None else None)

    def _make(self, change: _Change) -> None:
        before, after = change.before, change.after
        self.watch(before.attributes if before else None, after.attributes if after else None)
        if change.after is None:
            if change.before is not None:
                partition = self._partitions[change.pk]
                del partition.items[change.sk]
                del partition.order[bisect_left(partition.order, change.sk)]
            return
        partition = self._partitions.setdefault(change.pk, _Partition())
        if change.sk not in partition.items:
            insort(partition.order, change.sk)
        partition.items[change.sk] = change.after

    def _stored(self, pk: str, sk: str) -> _Stored | None:
        partition = self._partitions.get(pk)
        return partition.items.get(sk) if partition else None

    def _known(self, call: Call, parameters: frozenset[str]) -> None:
        assert call.keys() <= parameters, f"unknown parameters: {call.keys() - parameters}"
        assert call["TableName"] == self._table, f"an unknown table: {call['TableName']}"

    def _consumed(self, units: float, *, listed: bool = False) -> Response:
        consumed = {"TableName": self._table, "CapacityUnits": units}
        return {"ConsumedCapacity": [consumed] if listed else consumed}


_NOTHING: Final = _Partition()


def _in_range(order: Sequence[str], prefix: str, call: Call) -> Sequence[str]:
    """The sort keys that a query looks at, in its order."""
    first = bisect_left(order, prefix)
    end = bisect_left(order, prefix + "\U0010ffff") if prefix else len(order)
    forward = call.get("ScanIndexForward", True)
    if (start := call.get("ExclusiveStartKey")) is not None:
        if forward:
            first = max(first, bisect_right(order, start["sk"]["S"]))
        else:
            end = min(end, bisect_left(order, start["sk"]["S"]))
    found = order[first:end]
    return found if forward else found[::-1]


def _expressions(call: Call) -> tuple[Condition | None, Update | None]:
    """The call's expressions; every name and value that it gives must be used."""
    names = call.get("ExpressionAttributeNames", {})
    pairs = tuple(names.items())
    text, change = call.get("ConditionExpression"), call.get("UpdateExpression")
    condition = condition_of(text, pairs) if text is not None else None
    update = update_of(change, pairs) if change is not None else None
    expressions = [expression for expression in (condition, update) if expression is not None]
    assert names.keys() == set().union(*(expression.names for expression in expressions)), f"unused names: {call}"
    values = call.get("ExpressionAttributeValues", {})
    assert values.keys() == set().union(*(expression.values for expression in expressions)), f"unused values: {call}"
    return condition, update


def _key_of(kind: str, call: Call) -> tuple[str, str]:
    """The key of what is written."""
    return _key({name: call["Item"][name] for name in ("pk", "sk")} if kind == "Put" else call["Key"])


def _key(attributes: Attributes) -> tuple[str, str]:
    assert attributes.keys() == {"pk", "sk"}, f"no key of the table: {attributes}"
    pk, sk = attributes["pk"]["S"], attributes["sk"]["S"]
    assert pk, "a key may not be empty"
    assert sk, "a key may not be empty"
    return pk, sk


def _kilobytes(size: int, unit: int) -> int:
    return max(1, -(-size // unit))


def _item_bytes(item: Attributes) -> int:
    return sum(_text_bytes(name) + _bytes(value) for name, value in item.items())


def _bytes(value: Attribute) -> int:
    """https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html"""
    ((kind, held),) = value.items()
    match kind:
        case "S":
            return _text_bytes(held)
        case "N":
            return (len(held.strip("-").replace(".", "").strip("0")) + 1) // 2 + 1
        case "B":
            return len(held)
        case "SS":
            return sum(map(_text_bytes, held))
        case "M":
            return 3 + sum(1 + _text_bytes(name) + _bytes(inner) for name, inner in held.items())
        case "L":
            return 3 + sum(1 + _bytes(inner) for inner in held)
        case "BOOL" | "NULL":
            return 1
        case _:
            raise AssertionError(f"an unknown kind of value: {kind}")


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _refuse(operation: str, code: str, message: str, **more: object) -> NoReturn:
    response: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}, **more}
    raise ClientError(response, operation)
