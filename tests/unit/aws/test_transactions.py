"""Test the behaviour of DynamoDB that the emulators lack: conflicts between transactions, and its errors."""

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber
from mypy_boto3_dynamodb import DynamoDBClient

from spass.aws.dynamodb import DynamoDBTable
from spass.core.errors import InternalError, StorageUnavailable
from spass.core.ids import IndexId, TenantId
from spass.store import keys
from spass.store.table import ConditionFailed, TenantTable, TransactionFailed
from spass.store.writes import Put

pytestmark = pytest.mark.anyio
KEY = keys.rag_manifest(TenantId("demo"), IndexId("one"))
PUT = Put(KEY, {"n": 1})


@pytest.fixture
def client() -> DynamoDBClient:
    return boto3.client("dynamodb", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="x")


@pytest.fixture
def table(client: DynamoDBClient) -> TenantTable:
    return TenantTable(DynamoDBTable(client, "table"), TenantId("demo"))


def add_cancellation(stubber: Stubber, *reasons: str) -> None:
    stubber.add_client_error(
        "transact_write_items",
        "TransactionCanceledException",
        modeled_fields={"CancellationReasons": [{"Code": reason} for reason in reasons]},
    )


async def test_a_conflict_is_retried_with_the_same_token(client: DynamoDBClient, table: TenantTable) -> None:
    tokens: list[object] = []
    client.meta.events.register(
        "provide-client-params.dynamodb.TransactWriteItems", lambda params, **_: tokens.append(params["ClientRequestToken"])
    )
    with Stubber(client) as stubber:
        add_cancellation(stubber, "None", "TransactionConflict")
        add_cancellation(stubber, "ThrottlingError")
        stubber.add_response("transact_write_items", {})
        await table.transact([PUT], token="one-token")
        stubber.assert_no_pending_responses()
    assert tokens == ["one-token"] * 3


async def test_a_write_that_conflicts_with_a_transaction_is_retried(client: DynamoDBClient, table: TenantTable) -> None:
    with Stubber(client) as stubber:
        stubber.add_client_error("put_item", "TransactionConflictException")
        stubber.add_response("put_item", {})
        await table.write(PUT)
        stubber.assert_no_pending_responses()


async def test_a_failed_transaction_returns_the_stored_item_of_each_failed_write(
    client: DynamoDBClient, table: TenantTable
) -> None:
    with Stubber(client) as stubber:
        stubber.add_client_error(
            "transact_write_items",
            "TransactionCanceledException",
            modeled_fields={
                "CancellationReasons": [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Item": {"owner": {"S": "me"}}}]
            },
        )
        with pytest.raises(TransactionFailed) as failure:
            await table.transact([PUT, PUT], token="t")
    assert failure.value.failures == {1: {"owner": "me"}}


@pytest.mark.parametrize("code", ["ThrottlingException", "ProvisionedThroughputExceededException", "InternalServerError"])
async def test_an_error_of_the_service_is_storage_unavailable(client: DynamoDBClient, table: TenantTable, code: str) -> None:
    with Stubber(client) as stubber:
        stubber.add_client_error("get_item", code)
        with pytest.raises(StorageUnavailable):
            await table.get(KEY)


async def test_a_missing_permission_is_an_internal_error_without_resource_names(
    client: DynamoDBClient, table: TenantTable
) -> None:
    with Stubber(client) as stubber:
        stubber.add_client_error("put_item", "AccessDeniedException", "arn:aws:dynamodb:eu-central-1:1:table/secret")
        with pytest.raises(InternalError) as error:
            await table.write(PUT)
    assert "arn:" not in error.value.message
    assert "secret" not in error.value.message


async def test_an_unreachable_service_is_storage_unavailable(
    client: DynamoDBClient, table: TenantTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(**_: object) -> None:
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")

    monkeypatch.setattr(client, "get_item", unreachable)
    with pytest.raises(StorageUnavailable):
        await table.get(KEY)


async def test_a_key_of_another_tenant_is_refused_before_the_request(client: DynamoDBClient, table: TenantTable) -> None:
    other_tenants_key = keys.rag_manifest(TenantId("demo-2"), IndexId("one"))
    with Stubber(client):
        with pytest.raises(PermissionError):
            await table.get(other_tenants_key)
        with pytest.raises(PermissionError):
            await table.query(keys.rag_partition(TenantId("demo-2")))
        with pytest.raises(PermissionError):
            await table.write(Put(other_tenants_key, {}))
        with pytest.raises(PermissionError):
            await table.transact([PUT, Put(other_tenants_key, {})], token="t")


async def test_a_failed_write_returns_the_stored_item(client: DynamoDBClient, table: TenantTable) -> None:
    with Stubber(client) as stubber:
        stubber.add_client_error(
            "put_item",
            "ConditionalCheckFailedException",
            modeled_fields={"Item": {"n": {"N": "7"}, "deep": {"M": {"a": {"L": []}}}}},
        )
        with pytest.raises(ConditionFailed) as failure:
            await table.write(PUT)
    assert failure.value.item == {"n": 7, "deep": {"a": []}}


async def test_an_invalid_transaction_is_not_retried(client: DynamoDBClient, table: TenantTable) -> None:
    with Stubber(client) as stubber:
        add_cancellation(stubber, "None", "ValidationError")
        with pytest.raises(InternalError):
            await table.transact([PUT, PUT], token="t")
