"""Test calls of chat models: refusals, cost, and audit records."""

import asyncio
import json
import time
from dataclasses import replace
from decimal import Decimal

import pytest

from spass.core.cost import CostSource
from spass.core.errors import (
    InvalidRequest,
    ModelNotAllowed,
    ModelNotFound,
    NoBackendAvailable,
    RecursionDepthExceeded,
    UpstreamError,
    UpstreamRejected,
)
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCallDelta
from spass.models.errors import BackendBadRequest, BackendTimeout, BackendUnavailable
from spass.models.types import ChatDelta, ChatReply, ChatRequest
from spass.store.tenant_store import TenantStore
from spass.testing.model import ScriptedModel, in_turn
from tests.unit.calls.scripted_provider import CONFIG, at_depth, audit_of, calls_of, make_scope, scripted_model
from tests.unit.collected_replies import collect_deltas

pytestmark = pytest.mark.anyio

QUESTION = ChatRequest("small", (Message(Role.USER, "What is it, then?"),))


async def ask(provider: ScriptedModel, store: TenantStore, request: ChatRequest = QUESTION) -> ChatReply:
    return collect_deltas([delta async for delta in calls_of(provider).chat(make_scope(store), request)])


@pytest.mark.parametrize(
    ("model", "refusal"), [("absent", ModelNotFound), ("large", ModelNotAllowed), ("mini-embed", InvalidRequest)]
)
async def test_a_model_that_cannot_be_called_is_refused_without_a_request(
    store: TenantStore, model: str, refusal: type[Exception]
) -> None:
    provider = scripted_model()
    scope = make_scope(store, allowed=["small", "mini-embed"])
    with pytest.raises(refusal):
        calls_of(provider).chat(scope, ChatRequest(model, QUESTION.messages))
    assert provider.requests == []
    assert await audit_of(store) == []


async def test_a_call_at_the_maximum_depth_is_refused(store: TenantStore) -> None:
    provider = scripted_model()
    with pytest.raises(RecursionDepthExceeded):
        calls_of(provider).chat(at_depth(make_scope(store), 3), QUESTION)
    deltas = [delta async for delta in calls_of(provider).chat(at_depth(make_scope(store), 2), QUESTION)]
    assert deltas
    assert provider.contexts[0].headers["SPASS-Caller-Depth"] == "3"


async def test_the_last_delta_has_reason_usage_and_cost(store: TenantStore) -> None:
    pieces = [
        ChatDelta("He"),
        ChatDelta("llo"),
        ChatDelta(tool_calls=(ToolCallDelta(0, "call_1", "add", "{}"),)),
        ChatDelta("!", finish_reason=FinishReason.LENGTH, usage=TokenUsage(1000, 2000)),
    ]
    scope = make_scope(store)
    deltas = [delta async for delta in calls_of(scripted_model(pieces)).chat(scope, QUESTION)]
    assert deltas[-1] == ChatDelta(finish_reason=FinishReason.LENGTH, usage=TokenUsage(1000, 2000), cost_usd=Decimal("0.0035"))
    assert all(delta.finish_reason is None and delta.usage is None for delta in deltas[:-1])
    assert collect_deltas(deltas).message == collect_deltas(pieces).message
    assert (scope.tally.total.usd, scope.tally.total.eur) == (Decimal("0.0035"), Decimal("0.00315"))
    assert (scope.tally.total.source, scope.tally.total.sub_calls) == (CostSource.CATALOG, 1)


@pytest.mark.parametrize("late", [[], [ChatDelta(usage=TokenUsage(3, 4))], [ChatDelta(" More.")]], ids=["", "usage", "text"])
async def test_an_answer_in_one_piece_leaves_in_one_piece(store: TenantStore, late: list[ChatDelta]) -> None:
    """Text after the finish reason, which no provider should send, follows in its order."""
    provider = scripted_model([ChatDelta("The whole answer.", finish_reason=FinishReason.STOP), *late])
    deltas = [delta async for delta in calls_of(provider).chat(make_scope(store), QUESTION)]
    texts = [delta.content for delta in deltas if delta.content]
    if not late or late[0].usage is not None:
        assert texts == ["The whole answer."]
    assert "".join(texts) == "The whole answer." + "".join(delta.content for delta in late)


async def test_a_failed_attempt_is_logged_with_the_id_of_the_clients_request(
    store: TenantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UpstreamError):
        await ask(scripted_model(BackendUnavailable("down", status=503)), store)
    attempt, call = map(json.loads, capsys.readouterr().out.splitlines())
    assert attempt.items() >= {"request_id": "req_outer", "backend": "scripted", "status": 503}.items()
    assert call.items() >= {"event": "call", "outer_request_id": "req_outer", "status": "upstream_error"}.items()


async def test_the_record_is_written_before_the_answer_ends_and_has_no_text(store: TenantStore) -> None:
    provider = scripted_model([ChatDelta("secret answer", usage=TokenUsage(10, 5), finish_reason=FinishReason.STOP)])
    async for delta in calls_of(provider).chat(make_scope(store), QUESTION):
        if delta.finish_reason is not None:
            break
    (record,) = await audit_of(store)
    assert record["request_id"] == provider.contexts[0].headers["SPASS-Parent-Request-Id"] != "req_outer"
    expected = {
        "parent_request_id": "req_outer",
        "origin_request_id": "req_elsewhere",
        "token_id": "token-1",
        "user": "anna",
        "route": "/v1/chat/completions",
        "kind": "chat",
        "model": "small",
        "backend": "scripted",
        "attempts": 1,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cost_usd": "0.0000125",
        "cost_source": "catalog",
        "status": "ok",
        "finish_reason": "stop",
    }
    assert record.items() >= expected.items()
    assert record["ttl"] == pytest.approx(time.time() + 90 * 24 * 3600, abs=60)
    assert "secret" not in repr(record)
    assert "What is it" not in repr(record)


async def test_tokens_without_a_count_are_estimated_and_marked_as_estimates(store: TenantStore) -> None:
    reply = await ask(scripted_model([ChatDelta("12345")]), store)
    assert reply.usage == TokenUsage(5, 2)  # 17 and 5 characters
    (record,) = await audit_of(store)
    assert record["usage_estimated"] is True


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (TokenUsage(), TokenUsage(5, 2)),
        (TokenUsage(30), TokenUsage(30, 2)),
        (TokenUsage(0, 40), TokenUsage(5, 40)),
    ],
)
async def test_tokens_that_the_provider_did_not_count_are_estimated_and_priced(
    store: TenantStore, reported: TokenUsage, expected: TokenUsage
) -> None:
    scope = make_scope(store)
    calls = calls_of(scripted_model([ChatDelta("12345", usage=reported, cost_usd=Decimal(0))]))
    deltas = [delta async for delta in calls.chat(scope, QUESTION)]
    assert deltas[-1].usage == expected
    (record,) = await audit_of(store)
    assert record["usage_estimated"] is True
    price = (expected.prompt_tokens * Decimal("0.5") + expected.completion_tokens * Decimal("1.5")) / 10**6
    assert Decimal(str(record["cost_usd"])) == scope.tally.total.usd == price


async def test_a_cost_reported_before_the_text_is_ignored(store: TenantStore) -> None:
    scope = make_scope(store)
    first = ChatDelta("a", usage=TokenUsage(7, 1), cost_usd=Decimal("0.000001"))
    calls = calls_of(scripted_model([first, ChatDelta("b" * 4000, finish_reason=FinishReason.STOP)]))
    _ = [delta async for delta in calls.chat(scope, QUESTION)]
    assert (scope.tally.total.usd, scope.tally.total.source) == (Decimal("0.001505"), CostSource.CATALOG)


async def test_an_empty_answer_with_a_count_of_0_is_not_an_estimate(store: TenantStore) -> None:
    await ask(scripted_model([ChatDelta(usage=TokenUsage(30), cost_usd=Decimal(0))]), store)
    (record,) = await audit_of(store)
    assert (record["completion_tokens"], record["cost_usd"], record["cost_source"]) == (0, "0", "upstream")
    assert "usage_estimated" not in record


LATE = BackendTimeout("late")


@pytest.mark.parametrize("failure", [LATE, BackendUnavailable("gone"), asyncio.CancelledError()])
async def test_a_lost_answer_counts_as_the_reserved_tokens(store: TenantStore, failure: BaseException) -> None:
    scope = make_scope(store)
    calls = calls_of(scripted_model(failure, sent=True))
    with pytest.raises((UpstreamError, asyncio.CancelledError)):
        _ = [delta async for delta in calls.chat(scope, replace(QUESTION, max_tokens=100))]
    (record,) = await audit_of(store)
    assert (record["prompt_tokens"], record["completion_tokens"], record["usage_estimated"]) == (5, 100, True)
    assert Decimal(str(record["cost_usd"])) == scope.tally.total.usd == Decimal("0.0001525")
    assert scope.tally.total.sub_calls == 1


async def test_lost_answers_before_a_success_are_part_of_its_usage_and_cost(store: TenantStore) -> None:
    config = CONFIG.model_copy(update={"llm": CONFIG.llm.model_copy(update={"retries": 3, "retry_base_delay": 0})})
    unavailable = BackendUnavailable("gone")
    third = [ChatDelta("Well.", usage=TokenUsage(7, 3), cost_usd=Decimal("0.5"))]
    provider, scope = scripted_model(in_turn([unavailable, unavailable, third]), sent=True), make_scope(store)
    request = replace(QUESTION, max_tokens=100)
    last = [delta async for delta in calls_of(provider, config).chat(scope, request)][-1]
    assert (last.usage, last.failed_attempt_usage) == (TokenUsage(17, 203), TokenUsage(10, 200))
    (record,) = await audit_of(store)
    assert (record["attempts"], record["prompt_tokens"], record["completion_tokens"]) == (3, 17, 203)
    assert Decimal(str(record["cost_usd"])) == scope.tally.total.usd == Decimal("0.500305")
    assert (record["cost_source"], record["usage_estimated"], scope.tally.total.sub_calls) == ("catalog", True, 1)


async def test_a_stream_that_breaks_off_after_a_lost_answer_counts_both(store: TenantStore) -> None:
    config = CONFIG.model_copy(update={"llm": CONFIG.llm.model_copy(update={"retries": 1, "retry_base_delay": 0})})
    unavailable = BackendUnavailable("gone")
    provider = scripted_model(in_turn([unavailable, [ChatDelta("12345678"), unavailable]]), sent=True)
    with pytest.raises(UpstreamError):
        _ = [delta async for delta in calls_of(provider, config).chat(make_scope(store), replace(QUESTION, max_tokens=100))]
    (record,) = await audit_of(store)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (10, 102)


async def test_a_refusal_is_returned_and_its_tokens_count(store: TenantStore) -> None:
    reply = await ask(scripted_model([ChatDelta(refusal="I can"), ChatDelta(refusal="not.")]), store)
    assert (reply.message.content, reply.refusal, reply.usage) == ("", "I cannot.", TokenUsage(5, 3))


async def test_the_price_of_the_provider_wins_and_an_unknown_price_counts_as_0(store: TenantStore) -> None:
    scope = make_scope(store)
    priced_model = scripted_model([ChatDelta("a", cost_usd=Decimal("0.25"))])
    assert [delta async for delta in calls_of(priced_model).chat(scope, QUESTION)][-1].cost_usd == Decimal("0.25")
    assert scope.tally.total.source is CostSource.UPSTREAM
    unpriced_model = scripted_model([ChatDelta("a")])
    request = ChatRequest("unpriced", QUESTION.messages)
    assert [delta async for delta in calls_of(unpriced_model).chat(scope, request)][-1].cost_usd is None
    assert (scope.tally.total.source, scope.tally.total.sub_calls) == (CostSource.NONE, 2)
    assert scope.tally.total.usd == Decimal("0.25")


async def test_a_call_that_fails_before_its_answer_is_recorded_without_cost(store: TenantStore) -> None:
    scope = make_scope(store)
    provider = scripted_model(BackendUnavailable("down"))
    with pytest.raises(UpstreamError):
        await anext(calls_of(provider).chat(scope, QUESTION))
    (record,) = await audit_of(store)
    assert (record["status"], record["prompt_tokens"], record["cost_usd"]) == ("upstream_error", 0, "0")
    assert "usage_estimated" not in record  # the provider reported 0 tokens
    assert scope.tally.total.sub_calls == 0


async def test_a_call_that_breaks_off_is_recorded_with_its_usage(store: TenantStore) -> None:
    provider = scripted_model([ChatDelta("12345678"), BackendUnavailable("gone")])
    with pytest.raises(UpstreamError):
        await ask(provider, store)
    (record,) = await audit_of(store)
    assert (record["status"], record["completion_tokens"]) == ("upstream_error", 2)


@pytest.mark.parametrize(("text", "shown"), [("See 12345678901", "See 12345678901"), ("See sk-proj-a1B2c3D4", "See sk")])
async def test_a_long_word_in_which_a_stream_breaks_off_is_left_out(store: TenantStore, text: str, shown: str) -> None:
    provider = scripted_model([*(ChatDelta(letter) for letter in text), BackendUnavailable("gone")])
    texts: list[str] = []
    with pytest.raises(UpstreamError):
        async for delta in calls_of(provider).chat(make_scope(store), QUESTION):
            texts.append(delta.content)
    assert "".join(texts) == shown


async def test_all_text_before_a_stream_breaks_off_is_yielded_before_the_error(store: TenantStore) -> None:
    provider = scripted_model([ChatDelta("abcdefgh"), BackendUnavailable("gone")])
    texts: list[str] = []
    with pytest.raises(UpstreamError):
        async for delta in calls_of(provider).chat(make_scope(store), QUESTION):
            texts.append(delta.content)
    assert "".join(texts) == "abcdefgh"
    provider.script = [ChatDelta("The key is sk-proj-0123456789abcdef0123"), BackendUnavailable("gone")]
    texts.clear()
    with pytest.raises(UpstreamError):
        async for delta in calls_of(provider).chat(make_scope(store), QUESTION):
            texts.append(delta.content)
    assert "".join(texts).startswith("The key is ")
    assert "0123" not in "".join(texts)


async def test_a_call_without_a_backend_is_recorded_with_0_attempts(store: TenantStore) -> None:
    with pytest.raises(NoBackendAvailable):
        await ask(scripted_model(), store, ChatRequest("unserved", QUESTION.messages))
    (record,) = await audit_of(store)
    assert record["status"] == "no_backend_available"
    assert "attempts" not in record


async def test_the_message_of_a_provider_reaches_the_caller_without_secrets(store: TenantStore) -> None:
    message = "bad key sk-live-0123456789 at https://api.internal/v1 arn:aws:iam::123456789012:role/x in /etc/keys/openai"
    with pytest.raises(UpstreamRejected) as refusal:
        await ask(scripted_model(BackendBadRequest(message)), store)
    for secret in ("sk-live", "api.internal", "123456789012", "/etc/keys"):
        assert secret not in refusal.value.message
    assert refusal.value.__cause__ is None


async def test_closing_an_answer_closes_the_provider_and_is_recorded_once(store: TenantStore) -> None:
    provider = scripted_model([ChatDelta("1234"), ChatDelta("5678")])
    answer = calls_of(provider).chat(make_scope(store), QUESTION)
    await anext(answer)
    await answer.aclose()
    assert provider.closed == 1
    (record,) = await audit_of(store)
    assert (record["status"], record["completion_tokens"]) == ("cancelled", 1)


async def test_a_cancelled_call_is_recorded_once(store: TenantStore) -> None:
    started = asyncio.Event()

    async def run() -> None:
        answer = calls_of(scripted_model([ChatDelta("1234")])).chat(make_scope(store), QUESTION)
        try:
            async for _ in answer:
                started.set()
                await asyncio.Event().wait()
        finally:
            await answer.aclose()

    task = asyncio.create_task(run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (record,) = await audit_of(store)
    assert record["status"] == "cancelled"


async def test_a_call_cancelled_inside_the_provider_is_recorded(store: TenantStore) -> None:
    provider = scripted_model([ChatDelta("x"), asyncio.CancelledError()])
    with pytest.raises(asyncio.CancelledError):
        await ask(provider, store)
    (record,) = await audit_of(store)
    assert record["status"] == "cancelled"
