"""Test the behaviour of DynamoDB that the emulators lack: conflicts between transactions, and its errors."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from spass.aws.dynamodb import DynamoDBTable
from spass.aws.dynamodb_client import RequestRefused
from spass.aws.signing import KeySource
from spass.core.errors import InternalError
from spass.core.ids import IndexId, TenantId
from spass.store import keys
from spass.store.table import ConditionFailed, TenantTable, TransactionFailed
from spass.store.writes import Put

pytestmark = pytest.mark.anyio
KEY = keys.rag_manifest(TenantId("demo"), IndexId("one"))
PUT = Put(KEY, {"n": 1})


@dataclass(slots=True)
class Service:
    """A DynamoDB that gives each of ``answers`` once: an answer, or the refusal of a request."""

    answers: list[Mapping[str, Any] | RequestRefused] = field(default_factory=list)
    requests: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    async def call(
        self, operation: str, request: Mapping[str, object], expected: Collection[str] = (), keys: KeySource | None = None
    ) -> dict[str, Any]:
        self.requests.append((operation, request))
        answer = self.answers.pop(0)
        if isinstance(answer, RequestRefused):
            assert answer.code in expected
            raise answer
        return dict(answer)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def table(service: Service) -> TenantTable:
    return TenantTable(DynamoDBTable(service, "table"), TenantId("demo"))


def cancellation(*reasons: str) -> RequestRefused:
    return RequestRefused("TransactionCanceledException", {"CancellationReasons": [{"Code": reason} for reason in reasons]})


async def test_a_conflict_is_retried_with_the_same_token(service: Service, table: TenantTable) -> None:
    service.answers = [
        cancellation("None", "TransactionConflict"),
        cancellation("ThrottlingError"),
        RequestRefused("TransactionInProgressException", {}),
        {},
    ]
    await table.transact([PUT], token="one-token")
    assert [request["ClientRequestToken"] for _, request in service.requests] == ["one-token"] * 4


async def test_a_write_that_conflicts_with_a_transaction_is_retried(service: Service, table: TenantTable) -> None:
    service.answers = [RequestRefused("TransactionConflictException", {}), {}]
    await table.write(PUT)
    assert [operation for operation, _ in service.requests] == ["PutItem"] * 2


async def test_a_failed_transaction_returns_the_stored_item_of_each_failed_write(service: Service, table: TenantTable) -> None:
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Item": {"owner": {"S": "me"}}}]
    service.answers = [RequestRefused("TransactionCanceledException", {"CancellationReasons": reasons})]
    with pytest.raises(TransactionFailed) as failure:
        await table.transact([PUT, PUT], token="t")
    assert failure.value.failures == {1: {"owner": "me"}}


async def test_a_key_of_another_tenant_is_refused_before_the_request(service: Service, table: TenantTable) -> None:
    other_tenants_key = keys.rag_manifest(TenantId("demo-2"), IndexId("one"))
    with pytest.raises(PermissionError):
        await table.get(other_tenants_key)
    with pytest.raises(PermissionError):
        await table.query(keys.rag_partition(TenantId("demo-2")))
    with pytest.raises(PermissionError):
        await table.write(Put(other_tenants_key, {}))
    with pytest.raises(PermissionError):
        await table.transact([PUT, Put(other_tenants_key, {})], token="t")
    assert service.requests == []


async def test_a_failed_write_returns_the_stored_item(service: Service, table: TenantTable) -> None:
    stored = {"n": {"N": "7"}, "deep": {"M": {"a": {"L": []}}}, "bytes": {"B": "AAH/"}}
    service.answers = [RequestRefused("ConditionalCheckFailedException", {"Item": stored})]
    with pytest.raises(ConditionFailed) as failure:
        await table.write(PUT)
    assert failure.value.item == {"n": 7, "deep": {"a": []}, "bytes": b"\x00\x01\xff"}


async def test_an_invalid_transaction_is_not_retried(service: Service, table: TenantTable) -> None:
    service.answers = [cancellation("None", "ValidationError")]
    with pytest.raises(InternalError):
        await table.transact([PUT, PUT], token="t")


async def test_a_refusal_of_a_write_is_a_failed_condition_only_if_dynamodb_says_so(service: Service, table: TenantTable) -> None:
    service.answers = [RequestRefused("TransactionInProgressException", {}), cancellation("None"), {}]
    await table.write(PUT)
    assert len(service.requests) == 3
