"""Test calls of embedding models."""

from decimal import Decimal

import pytest

from spass.core.errors import InvalidRequest, ModelNotAllowed, ModelNotFound, UpstreamError
from spass.models.errors import BackendUnavailable
from spass.store.tenant_store import TenantStore
from tests.unit.calls.scripted_provider import (
    audit_of,
    calls_of,
    failing_second_embedding,
    make_scope,
    scripted_model,
    vectors_of,
)

pytestmark = pytest.mark.anyio


async def test_vectors_have_the_order_of_the_texts_over_several_requests(store: TenantStore) -> None:
    provider = scripted_model()
    texts = ["x" * (number % 7 + 1) for number in range(150)]
    reply = await calls_of(provider).embed(make_scope(store), texts)
    assert [row[0] for row in reply.rows()] == [len(text) for text in texts]
    assert (reply.count, reply.dimensions, reply.usage.prompt_tokens) == (150, 3, 300)
    assert [len(request.texts) for request in provider.embeddings] == [32, 32, 32, 32, 22]


async def test_several_requests_are_one_call_in_the_cost_and_in_the_audit(store: TenantStore) -> None:
    scope = make_scope(store)
    await calls_of(scripted_model()).embed(scope, ["x"] * 150)
    (record,) = await audit_of(store)
    assert (record["kind"], record["model"], record["attempts"]) == ("embedding", "mini-embed", 5)
    assert record["prompt_tokens"] == 300
    assert (scope.tally.total.usd, scope.tally.total.sub_calls) == (Decimal("0.00003"), 1)


async def test_the_allow_list_also_applies_to_the_configured_model(store: TenantStore) -> None:
    calls = calls_of(scripted_model())
    scope = make_scope(store, allowed=["small"])
    assert (await calls.embed(make_scope(store, allowed=["mini-embed"]), ["x"])).count == 1
    for model in (None, "mini-embed"):
        with pytest.raises(ModelNotAllowed):
            await calls.embed(scope, ["x"], model)
    with pytest.raises(InvalidRequest):
        await calls.embed(scope, ["x"], "small")
    with pytest.raises(ModelNotFound):
        await calls.embed(scope, ["x"], "absent")


async def test_the_usage_of_a_failed_call_is_charged(store: TenantStore) -> None:
    scope = make_scope(store)
    with pytest.raises(UpstreamError):
        await calls_of(failing_second_embedding()).embed(scope, ["x"] * 64)
    (record,) = await audit_of(store)
    assert (record["status"], record["prompt_tokens"], record["attempts"]) == ("upstream_error", 64, 2)
    assert scope.tally.total.sub_calls == 1


async def test_uncounted_tokens_are_estimated(store: TenantStore) -> None:
    reply = await calls_of(scripted_model(vectors=vectors_of(0))).embed(make_scope(store), ["12345", "1"])
    assert reply.usage.prompt_tokens == 3


async def test_a_call_without_texts_is_not_made(store: TenantStore) -> None:
    provider = scripted_model()
    reply = await calls_of(provider).embed(make_scope(store), [])
    assert (reply.count, reply.dimensions, reply.data) == (0, 3, b"")
    assert provider.embeddings == []
    assert await audit_of(store) == []


async def test_lost_vectors_are_charged(store: TenantStore) -> None:
    scope = make_scope(store)
    with pytest.raises(UpstreamError):
        await calls_of(scripted_model(failure=BackendUnavailable("gone"), sent=True)).embed(scope, ["x" * 400])
    (record,) = await audit_of(store)
    assert (record["prompt_tokens"], record["usage_estimated"]) == (100, True)
    assert Decimal(str(record["cost_usd"])) == scope.tally.total.usd == Decimal("0.00001")
