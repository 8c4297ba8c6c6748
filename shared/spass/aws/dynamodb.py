"""The table in DynamoDB. Only this module writes DynamoDB's expressions."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from spass.aws.dynamodb_client import RequestRefused
from spass.aws.signing import KeySource
from spass.core.errors import InternalError
from spass.store.keys import Key
from spass.store.table import ConditionFailed, Page, Query, Reply, TransactionConflict, TransactionFailed
from spass.store.writes import (
    Absent,
    AllOf,
    AnyOf,
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

T = TypeVar("T")

Attribute: TypeAlias = dict[str, object]
"""A value with its type, as in DynamoDB's JSON protocol: ``{"S": "text"}``."""

_REFUSALS: Final = frozenset(
    {
        "ConditionalCheckFailedException",
        "TransactionCanceledException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
# Cancellation reasons after which a retry may succeed. "None" is the reason of a write that did not cause the cancellation.
_TRANSIENT_REASONS: Final = frozenset({"None", "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})

_ITEMS_AT_ONCE: Final = 200
"""A page may have thousands of items. The event loop serves others after so many, which take about two milliseconds."""

_ACTIONS: Final = {Put: "Put", Update: "Update", Delete: "Delete", Check: "ConditionCheck"}
_OPERATIONS: Final = {Put: ("PutItem", "NONE"), Update: ("UpdateItem", "ALL_NEW"), Delete: ("DeleteItem", "ALL_OLD")}


class ServiceClient(Protocol):
    """DynamoDB's operations: ``DynamoDBClient``, or an emulator in this process."""

    async def call(
        self, operation: str, request: Mapping[str, object], expected: Collection[str] = (), keys: KeySource | None = None
    ) -> dict[str, Any]:
        """Make one call, as ``DynamoDBClient.call`` does."""
        ...


class DynamoDBTable:
    """A ``TableClient`` of the table ``name``, with the credentials of ``keys`` or else of this process."""

    def __init__(self, client: ServiceClient, name: str, keys: KeySource | None = None) -> None:
        self._client = client
        self._name = name
        self._keys = keys

    async def get(self, *, key: Key, consistent: bool) -> Reply[Item | None]:
        answer = await self._call("GetItem", {"Key": _key(key), "ConsistentRead": consistent})
        return _reply(answer, _item(answer))

    async def query(self, *, query: Query) -> Reply[Page]:
        values: dict[str, Attribute] = {":pk": {"S": query.partition}}
        request: dict[str, object] = {
            "KeyConditionExpression": "pk = :pk",
            "ExpressionAttributeValues": values,
            "ConsistentRead": query.consistent,
            "ScanIndexForward": not query.newest_first,
        }
        if query.prefix:
            request["KeyConditionExpression"] = "pk = :pk AND begins_with(sk, :prefix)"
            values[":prefix"] = {"S": query.prefix}
        if query.after is not None:
            request["ExclusiveStartKey"] = _key(Key(query.partition, query.after))
        if query.limit is not None:
            request["Limit"] = query.limit
        answer = await self._call("Query", request)
        items: list[Item] = []
        for stored in answer["Items"]:
            items.append(item_of(stored))
            if len(items) % _ITEMS_AT_ONCE == 0:
                await asyncio.sleep(0)
        last = answer.get("LastEvaluatedKey")
        return _reply(answer, Page(items, last["sk"]["S"] if last else None))

    async def write(self, *, write: Put | Update | Delete) -> Reply[Item | None]:
        operation, return_values = _OPERATIONS[type(write)]
        try:
            answer = await self._call(operation, {"ReturnValues": return_values, **parameters_of(write)}, _REFUSALS)
        except RequestRefused as refusal:
            if refusal.code == "ConditionalCheckFailedException":
                raise ConditionFailed(_item(refusal.body)) from None
            raise TransactionConflict from None
        return _reply(answer, _item(answer, "Attributes"))

    async def transact(self, *, writes: Sequence[Write], token: str) -> Reply[None]:
        items = [{_ACTIONS[type(write)]: {**parameters_of(write), "TableName": self._name}} for write in writes]
        request = {"TransactItems": items, "ClientRequestToken": token, "ReturnConsumedCapacity": "TOTAL"}
        try:
            answer = await self._client.call("TransactWriteItems", request, _REFUSALS, self._keys)
        except RequestRefused as refusal:
            reasons = cast("Sequence[Mapping[str, object]]", refusal.body.get("CancellationReasons", []))
            failures = {n: _item(reason) for n, reason in enumerate(reasons) if reason.get("Code") == "ConditionalCheckFailed"}
            if failures:
                raise TransactionFailed(failures) from None
            if {reason.get("Code") for reason in reasons} - _TRANSIENT_REASONS:
                raise InternalError("The storage refused a transaction of ours.") from None
            raise TransactionConflict from None
        return _reply(answer, None)

    async def _call(self, operation: str, request: Mapping[str, object], expected: Collection[str] = ()) -> dict[str, Any]:
        common = {"TableName": self._name, "ReturnConsumedCapacity": "TOTAL"}
        return await self._client.call(operation, {**request, **common}, expected, self._keys)


def _reply(response: Mapping[str, Any], value: T) -> Reply[T]:
    consumed = response.get("ConsumedCapacity", ())
    entries = [consumed] if isinstance(consumed, Mapping) else consumed
    return Reply(value, sum(entry.get("CapacityUnits", 0.0) for entry in entries))


def _item(response: Mapping[str, Any], name: str = "Item") -> Item | None:
    stored = response.get(name)
    return item_of(stored) if stored else None


def parameters_of(write: Write) -> dict[str, object]:
    """Return the parameters of ``write`` except its table: ``Key`` or ``Item``, and its expressions."""
    expressions = _Expressions()
    parameters: dict[str, object] = {}
    match write:
        case Put():
            parameters["Item"] = {name: attribute_of(value) for name, value in write.attributes.items()} | _key(write.key)
        case Update():
            parameters["Key"] = _key(write.key)
            parameters["UpdateExpression"] = expressions.update(write)
        case Delete() | Check():
            parameters["Key"] = _key(write.key)
    if write.when is not None:
        parameters["ConditionExpression"] = expressions.condition(write.when)
        parameters["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if expressions.names:
        parameters["ExpressionAttributeNames"] = {placeholder: name for name, placeholder in expressions.names.items()}
    if expressions.values:
        parameters["ExpressionAttributeValues"] = expressions.values
    return parameters


def _key(key: Key) -> dict[str, Attribute]:
    return {"pk": {"S": key.pk}, "sk": {"S": key.sk}}


class _Expressions:
    """The expressions of one request. ``names`` maps names to placeholders, because a name may be a reserved word; ``values``
    maps placeholders to values."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Attribute] = {}

    def update(self, update: Update) -> str:
        sets = [f"{self._path(path)} = {self._value(value)}" for path, value in update.set.items()]
        for path, value in update.default.items():
            sets.append(f"{self._path(path)} = if_not_exists({self._path(path)}, {self._value(value)})")
        adds = []
        for path, value in update.add.items():
            if "." in path:  # ADD accepts only whole attributes
                sets.append(f"{self._path(path)} = {self._path(path)} + {self._value(value)}")
            else:
                adds.append(f"{self._path(path)} {self._value(value)}")
        discards = [f"{self._path(path)} {self._value(members)}" for path, members in update.discard.items()]
        clauses = {"SET": sets, "REMOVE": list(map(self._path, update.remove)), "ADD": adds, "DELETE": discards}
        return " ".join(f"{clause} {', '.join(actions)}" for clause, actions in clauses.items() if actions)

    def condition(self, condition: Condition) -> str:
        match condition:
            case Exists(path):
                return f"attribute_exists({self._path(path)})"
            case Absent(path):
                return f"attribute_not_exists({self._path(path)})"
            case Equals(path, value):
                return f"{self._path(path)} = {self._value(value)}"
            case AtMost(path, value):
                return f"{self._path(path)} <= {self._value(value)}"
            case OneOf(path, list(values) | tuple(values)):
                return f"{self._path(path)} IN ({', '.join(map(self._value, values))})"
            case Contains(path, value):
                return f"contains({self._path(path)}, {self._value(value)})"
            case Lacks(path, value):
                return f"NOT contains({self._path(path)}, {self._value(value)})"
            case HasSize(path, value):
                # DynamoDB needs no attribute_exists here, but moto fails without it.
                return f"(attribute_exists({self._path(path)}) AND size({self._path(path)}) = {self._value(value)})"
            case AllOf(conditions):
                return self._join(" AND ", conditions)
            case AnyOf(conditions):
                return self._join(" OR ", conditions)
        raise TypeError(f"not a condition: {condition!r}")

    def _join(self, operator: str, conditions: Iterable[Condition]) -> str:
        return f"({operator.join(map(self.condition, conditions))})"

    def _path(self, path: str) -> str:
        return self._name(path) if "." not in path else ".".join(map(self._name, path.split(".")))

    def _name(self, name: str) -> str:
        placeholder = self.names.get(name)
        if placeholder is None:
            placeholder = self.names[name] = f"#n{len(self.names)}"
        return placeholder

    def _value(self, value: Value) -> str:
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = attribute_of(value)
        return placeholder


def item_of(stored: Mapping[str, Mapping[str, object]]) -> Item:
    """Return a stored item."""
    return {name: _value(attribute) for name, attribute in stored.items()}


def attribute_of(value: Value) -> Attribute:
    """Return ``value`` with its type."""
    match value:
        case str():
            return {"S": value}
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case Decimal():
            return {"N": f"{value:f}"}
        case bytes():
            return {"B": b64encode(value).decode()}
        case frozenset():
            return {"SS": sorted(value)}
        case Mapping():
            return {"M": {name: attribute_of(inner) for name, inner in value.items()}}
        case _:
            return {"L": [attribute_of(inner) for inner in value]}


def _value(attribute: Mapping[str, object]) -> Value:
    ((kind, content),) = attribute.items()
    match kind:
        case "S" | "BOOL":
            return cast("str | bool", content)
        case "N":
            return _number(cast(str, content))
        case "M":
            return {name: _value(inner) for name, inner in cast("Mapping[str, Mapping[str, object]]", content).items()}
        case "L":
            return [_value(inner) for inner in cast("Sequence[Mapping[str, object]]", content)]
        case "SS":
            return frozenset(cast("Sequence[str]", content))
        case "B":
            return b64decode(cast(str, content))
        case "NULL":
            return None
        case _:
            raise TypeError(f"not a type of an attribute: {kind}")


def _number(text: str) -> int | Decimal:
    if text.isdecimal():
        return int(text)
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else number
