"""The one table, seen by one tenant: typed reads and conditional writes, and errors in our own words."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

from botocore.exceptions import ClientError

from spass.aws import writes
from spass.aws.attributes import Item, Value, attribute_of, item_of
from spass.aws.dynamodb import parameters_of
from spass.aws.error_translation import storage_errors
from spass.aws.faults import AwsCall, invoke
from spass.aws.keys import Key, tenant_prefix
from spass.aws.retry import retry_once
from spass.core.errors import InternalError, StorageUnavailable
from spass.core.ids import TenantId
from spass.core.time import now_s

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef, TransactWriteItemTypeDef

T = TypeVar("T")

TTL: Final = "ttl"
"""The attribute with the second after which an item is gone: for readers at once, from the table when DynamoDB gets to it."""

# Why a transaction may be cancelled and yet succeed when it is sent again. "None" is a write that was not at fault.
_PASSING: Final = frozenset({"None", "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
_CONFLICT_ATTEMPTS: Final = 8
_CONFLICT_BASE_DELAY: Final = 0.02  # seconds; doubled per attempt, full jitter


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition expression with its names (``#n``) and values (``:v``)."""

    expression: str
    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)


ABSENT: Final = Condition("attribute_not_exists(pk)")


@dataclass(frozen=True, slots=True)
class Put:
    """Write a whole item."""

    key: Key
    attributes: Mapping[str, Value]
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Change an item by an update expression such as ``SET #a = :a REMOVE b``."""

    key: Key
    expression: str
    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    key: Key
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Only a condition, as part of a transaction."""

    key: Key
    condition: Condition


Write: TypeAlias = Put | Update | Delete | Check | writes.Write


class ConditionFailed(Exception):
    """A write's condition did not hold. ``item`` is what stood there, None if nothing did.

    The client retries a lost reply by itself, and the retry may meet the first try's effect: who conditions a write on something
    that the write itself changes must look whether ``item`` is already its own.
    """

    def __init__(self, item: Item | None) -> None:
        super().__init__("a condition on a write did not hold")
        self.item = item


class TransactionFailed(Exception):
    """Conditions of a transaction did not hold. ``failures`` maps each such write's position to what stood there."""

    def __init__(self, failures: Mapping[int, Item | None]) -> None:
        super().__init__(f"conditions of writes {sorted(failures)} of a transaction did not hold")
        self.failures = failures


class GuardedTable:
    """The part of the table whose keys begin with ``prefix``: every other key is refused before it leaves the process."""

    def __init__(self, client: "DynamoDBClient", name: str, prefix: str) -> None:
        self._client = client
        self._name = name
        self._prefix = prefix

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        """The item, or None when there is none or it has expired.

        Raises:
            StorageUnavailable: throttled or unreachable through all retries.
        """
        response = await self._call(
            "GetItem",
            self._client.get_item,
            {"Key": self._key(key), "ConsistentRead": consistent, "ReturnConsumedCapacity": "TOTAL"},
        )
        stored = response.get("Item")
        item = item_of(stored) if stored else None
        return item if item and _visible(item) else None

    async def query(
        self,
        partition: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        consistent: bool = True,
    ) -> list[Item]:
        """Items of a partition whose sort key begins with ``prefix``, in key order (or against it), beginning behind the sort key
        ``after``. Follows the service's pages until ``limit`` items are found or there are no more.

        Raises:
            StorageUnavailable: throttled or unreachable through all retries.
        """
        values: dict[str, AttributeValueTypeDef] = {":pk": {"S": self._guard(partition)}}
        expression = "pk = :pk"
        if prefix:
            expression += " AND begins_with(sk, :prefix)"
            values[":prefix"] = {"S": prefix}
        parameters: dict[str, object] = {
            "KeyConditionExpression": expression,
            "ExpressionAttributeValues": values,
            "ConsistentRead": consistent,
            "ScanIndexForward": not newest_first,
            "ReturnConsumedCapacity": "TOTAL",
        }
        start: object = self._key(Key(partition, after)) if after is not None else None
        items: list[Item] = []
        while True:
            page = dict(parameters)
            if start is not None:
                page["ExclusiveStartKey"] = start
            if limit is not None:
                page["Limit"] = limit - len(items)
            response = await self._call("Query", self._client.query, page)
            items += [item for item in map(item_of, response["Items"]) if _visible(item)]
            start = response.get("LastEvaluatedKey")
            if start is None or (limit is not None and len(items) >= limit):
                return items

    async def write(self, write: Put | Update | Delete | writes.Put | writes.Update | writes.Delete) -> Item | None:
        """Do one write. An Update answers the item after it, a Delete the item that was there, a Put nothing. Conflicts with
        transactions under way are retried.

        Raises:
            ConditionFailed: its condition did not hold.
            StorageUnavailable: throttled or unreachable; whether the write took effect is unknown.
        """
        method: Callable[..., object]
        if isinstance(write, Put | writes.Put):
            operation, method, returns = "PutItem", self._client.put_item, "NONE"
        elif isinstance(write, Update | writes.Update):
            operation, method, returns = "UpdateItem", self._client.update_item, "ALL_NEW"
        else:
            operation, method, returns = "DeleteItem", self._client.delete_item, "ALL_OLD"
        parameters = self._parameters(write) | {"ReturnValues": returns, "ReturnConsumedCapacity": "TOTAL"}
        response = await self._call_through_conflicts(operation, cast("Callable[..., dict[str, object]]", method), parameters)
        attributes = response.get("Attributes")
        return item_of(cast("Mapping[str, AttributeValueTypeDef]", attributes)) if attributes else None

    async def _call_through_conflicts(
        self, operation: str, method: Callable[..., dict[str, object]], parameters: Mapping[str, object]
    ) -> dict[str, object]:
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                return await self._call(operation, method, parameters)
            except ClientError as error:
                match error.response["Error"]["Code"]:
                    case "ConditionalCheckFailedException":
                        raise ConditionFailed(_failed_item(error.response)) from None
                    case "TransactionConflictException":
                        await _pause(attempt)
                    case _:
                        raise
        raise _too_many_writers()

    async def transact(self, writes: Sequence[Write], *, token: str) -> None:
        """Do all of ``writes`` or none.

        ``token`` (≤ 36 characters) names the attempt: the same transaction sent again under it within ten minutes takes
        effect once. Conflicts with other writers are retried with it.

        Raises:
            TransactionFailed: conditions did not hold.
            StorageUnavailable: throttled, in conflict through all retries, or unreachable; then its effect is unknown.
        """
        items = [self._transact_item(write) for write in writes]
        parameters = {"TransactItems": items, "ClientRequestToken": token, "ReturnConsumedCapacity": "TOTAL"}
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                await self._call("TransactWriteItems", self._client.transact_write_items, parameters)
            except ClientError as error:
                reasons = cast("Sequence[Mapping[str, object]]", error.response.get("CancellationReasons", []))
                failures = {
                    n: _failed_item(reason) for n, reason in enumerate(reasons) if reason.get("Code") == "ConditionalCheckFailed"
                }
                if failures:
                    raise TransactionFailed(failures) from None
                if {reason.get("Code") for reason in reasons} - _PASSING:
                    raise InternalError("The storage refused a transaction of ours.") from None
                if error.response["Error"]["Code"] not in ("TransactionCanceledException", "TransactionInProgressException"):
                    raise
                await _pause(attempt)
            else:
                return
        raise _too_many_writers()

    async def _call(self, operation: str, method: Callable[..., T], parameters: Mapping[str, object]) -> T:
        parameters = dict(parameters)
        if operation != "TransactWriteItems":
            parameters["TableName"] = self._name

        def run() -> T:
            with storage_errors():
                return method(**parameters)

        return await retry_once(lambda: invoke(AwsCall("dynamodb", operation, parameters), run))

    def _guard(self, partition: str) -> str:
        if not partition.startswith(self._prefix):
            raise PermissionError(f"a key outside {self._prefix}")
        return partition

    def _key(self, key: Key) -> "dict[str, AttributeValueTypeDef]":
        return {"pk": {"S": self._guard(key.pk)}, "sk": {"S": key.sk}}

    def _parameters(self, write: Write) -> dict[str, object]:
        if isinstance(write, writes.Put | writes.Update | writes.Delete | writes.Check):
            self._guard(write.key.pk)
            return parameters_of(write)
        parameters: dict[str, object] = {}
        names: dict[str, str] = {}
        values: dict[str, Value] = {}
        if isinstance(write, Put):
            attributes = {name: attribute_of(value) for name, value in write.attributes.items()}
            parameters["Item"] = attributes | self._key(write.key)
        else:
            parameters["Key"] = self._key(write.key)
        if isinstance(write, Update):
            parameters["UpdateExpression"] = write.expression
            names |= write.names
            values |= write.values
        if write.condition is not None:
            parameters["ConditionExpression"] = write.condition.expression
            parameters["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
            names |= write.condition.names
            values |= write.condition.values
        if names:
            parameters["ExpressionAttributeNames"] = names
        if values:
            parameters["ExpressionAttributeValues"] = {name: attribute_of(value) for name, value in values.items()}
        return parameters

    def _transact_item(self, write: Write) -> "TransactWriteItemTypeDef":
        kind = "ConditionCheck" if isinstance(write, Check | writes.Check) else type(write).__name__
        return cast("TransactWriteItemTypeDef", {kind: self._parameters(write) | {"TableName": self._name}})


class TenantTable(GuardedTable):
    """The table as one tenant may see it: the keys that begin with ``T#<tenant>#``."""

    def __init__(self, client: "DynamoDBClient", name: str, tenant: TenantId) -> None:
        super().__init__(client, name, tenant_prefix(tenant))
        self.tenant = tenant


async def _pause(attempt: int) -> None:
    await asyncio.sleep(random.uniform(0, _CONFLICT_BASE_DELAY * 2**attempt))  # noqa: S311 (jitter)


def _too_many_writers() -> StorageUnavailable:
    return StorageUnavailable("Too many writers at once; try again.", retry_after=1)


def _visible(item: Item) -> bool:
    expires = item.get(TTL)
    return not isinstance(expires, int) or expires > now_s()


def _failed_item(response: Mapping[str, object]) -> Item | None:
    stored = response.get("Item")
    return item_of(cast("Mapping[str, AttributeValueTypeDef]", stored)) if stored else None
