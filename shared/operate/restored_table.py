"""Read a restored table, partition by partition, and mark in it what could not be restored."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spass.store.keys import Key
from spass.store.restored import LOST

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

StoredItem: TypeAlias = dict[str, Any]

# Bodies of turns and texts are left out, so that the items of the longest session fit into memory.
ATTRIBUTES: Final = (
    *("pk", "sk", "ttl", "generation", "version", "deleted_at", "next_seq", "summary_id", "body_object", "text_object"),
    *("answer_object", "is_large", "embedding_model", "dimensions", "created_at", "updated_at", "segments", "retired"),
    *("revision", "tree", "pack", "status", "stopped", "key", LOST),
)
_READ: Final[Mapping[str, Any]] = {
    "ConsistentRead": True,
    "ProjectionExpression": ", ".join(f"#{number}" for number in range(len(ATTRIBUTES))),
    "ExpressionAttributeNames": {f"#{number}": name for number, name in enumerate(ATTRIBUTES)},
}


@dataclass(frozen=True, slots=True)
class RestoredTable:
    """A restored table. ``is_in_use`` says that the gateway uses it already; then nothing is written to it."""

    client: "DynamoDBClient"
    name: str
    is_in_use: bool = False

    def partitions(self) -> Iterator[Sequence[StoredItem]]:
        """Yield the items of each partition. A scan returns those of one partition together, in their order."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.name, **_READ)
        items = chain.from_iterable(map(_decode, page["Items"]) for page in pages)
        for _, group in groupby(items, key=lambda item: str(item["pk"])):
            yield list(group)

    def query(self, partition: str) -> Sequence[StoredItem]:
        """Return the items of one partition."""
        pages = self.client.get_paginator("query").paginate(
            TableName=self.name,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": {"S": partition}},
            **_READ,
        )
        return list(chain.from_iterable(map(_decode, page["Items"]) for page in pages))

    def get(self, key: Key) -> StoredItem | None:
        found = self.client.get_item(TableName=self.name, Key=_key(key), **_READ)
        return _decode(found["Item"]) if "Item" in found else None

    def mark(self, key: Key, mark: Mapping[str, Any] | None) -> None:
        """Set the mark of the item at ``key``, or remove it."""
        update = partial(
            self.client.update_item,
            TableName=self.name,
            Key=_key(key),
            ConditionExpression="attribute_exists(pk)",
            ExpressionAttributeNames={"#lost": LOST},
        )
        if mark is None:
            update(UpdateExpression="REMOVE #lost")
        else:
            update(UpdateExpression="SET #lost = :mark", ExpressionAttributeValues={":mark": _encode(mark)})


def _key(key: Key) -> dict[str, Any]:
    return {"pk": {"S": key.pk}, "sk": {"S": key.sk}}


def _decode(item: Mapping[str, Mapping[str, Any]]) -> StoredItem:
    return {name: _value(value) for name, value in item.items()}


def _value(stored: Mapping[str, Any]) -> Any:  # noqa: ANN401 (an attribute has any type)
    ((kind, content),) = stored.items()
    match kind:
        case "N":
            return int(content)  # the gateway stores no fractions
        case "M":
            return _decode(content)
        case "L":
            return [_value(member) for member in content]
        case "NULL":
            return None
    return content


def _encode(value: str | int | Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    match value:
        case str():
            return {"S": value}
        case int():
            return {"N": str(value)}
        case Mapping():
            return {"M": {name: _encode(member) for name, member in value.items()}}
    return {"L": [_encode(member) for member in value]}
