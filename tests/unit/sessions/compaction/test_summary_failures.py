"""A failure of the summary model raises SummaryFailed; other errors are raised unchanged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from spass.core.errors import BudgetExceeded, RateLimited, RecursionDepthExceeded, SpassError, StorageUnavailable, SummaryFailed
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.models import errors as llm
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.tenant_store import TenantStore
from spass.testing.faults import Fault, FaultPlan, inject
from spass.testing.model import Answer, ScriptedModel
from tests.unit.calls.scripted_provider import at_depth, audit_of, make_scope
from tests.unit.sessions.compaction.summary_models import (
    FAILURES,
    SECRET,
    config,
    conversation,
    material,
    merges,
    questions,
    summarise,
    summarizer_over,
    summary_deltas,
    summary_model,
)

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class FailureCase:
    """A conversation to summarise. ``fails`` selects the requests that fail."""

    messages: Sequence[Message]
    fails: Callable[[ChatRequest], bool]
    earlier: str | None = None


def has(text: str) -> Callable[[ChatRequest], bool]:
    return lambda request: any(text in str(value) for line in material(request) for value in line.values())


SITUATIONS = {
    "one request": FailureCase(conversation(2), lambda _: True),
    "one request with an earlier summary": FailureCase(conversation(2), lambda _: True, "Ana."),
    "the first of several parts": FailureCase(conversation(24), has("turn-0")),
    "a later part": FailureCase(conversation(24), has("turn-20"), "Ana."),
    "the parts together": FailureCase(conversation(24), merges),
    "the parts together with an earlier summary": FailureCase(conversation(24), merges, "Ana."),
}


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS.keys())
@pytest.mark.parametrize(("failure", "reason"), FAILURES.values(), ids=FAILURES.keys())
async def test_a_model_that_fails_fails_the_summary(
    store: TenantStore, failure: Any, reason: str, situation: FailureCase
) -> None:
    failure_count = 0

    def write(request: ChatRequest) -> Any:
        nonlocal failure_count
        if not situation.fails(request):
            return summary_deltas("A fine summary.")
        failure_count += 1
        return failure

    model = summary_model(write)
    with pytest.raises(SpassError) as raised:
        await summarise(model, make_scope(store), situation.messages, earlier=situation.earlier)
    assert type(raised.value) is SummaryFailed
    assert raised.value.details == {"reason": reason, "model": "small"}
    assert SECRET not in raised.value.message
    assert "small" in raised.value.message
    assert failure_count >= (2 if reason == "too_long" else 1)
    assert model.closed == len(model.requests)


@pytest.mark.parametrize("failing", [1, 2, 3])
async def test_a_failure_cancels_the_concurrent_calls(store: TenantStore, failing: int) -> None:
    model = summary_model(lambda _: llm.BackendBadRequest("no") if len(model.requests) == failing else summary_deltas("Fine."))
    with pytest.raises(SummaryFailed):
        await summarise(model, make_scope(store), conversation(300))
    assert len(model.requests) < 16
    assert model.closed == len(model.requests)


async def test_a_request_that_the_provider_rejects_as_too_long_is_split(store: TenantStore) -> None:
    """The window may be smaller than the catalogue states."""
    actual_window = 900

    def write(request: ChatRequest) -> Answer:
        if sum(len(message.content) for message in request.messages) > actual_window + 700:
            return llm.BackendContextLength("too long")
        return summary_deltas("Part.")

    model = summary_model(write)
    messages = conversation(40)
    work = summarise(model, make_scope(store), messages, config("roomy"), earlier="Ana.", mask_observations=False)
    assert (await work).text == "Part."
    accepted_requests = [
        r for r in model.requests if not merges(r) and sum(len(m.content) for m in r.messages) <= actual_window + 700
    ]
    assert questions(accepted_requests) == sorted(message.content for message in messages if message.role is Role.USER)
    assert len(model.requests) - len(accepted_requests) < 16  # a request that was too long is not sent again


def truncated(request: ChatRequest, window: int) -> Answer:
    """Answer as servers that silently truncate a prompt that exceeds their window; only the token count reveals it."""
    tokens = sum(len(message.content) for message in request.messages) // 4
    return [ChatDelta("Part.", finish_reason=FinishReason.STOP, usage=TokenUsage(min(tokens, window), 2))]


def fits(request: ChatRequest, window: int) -> bool:
    return sum(len(message.content) for message in request.messages) / 4 < window


@pytest.mark.parametrize(
    ("window", "messages"),
    # the tokens that the second one reads are a multiple of 1024, and too close to those sent for a comparison
    [(4096, conversation(1000, 40)), (8192, conversation(200, 45))],
    ids=["far beyond", "shortly before its end"],
)
async def test_a_silently_truncated_request_is_split(store: TenantStore, window: int, messages: Sequence[Message]) -> None:
    model = summary_model(lambda request: truncated(request, window))
    assert (await summarise(model, make_scope(store), messages, config("vast"))).text == "Part."
    accepted = [request for request in model.requests if fits(request, window)]
    assert set(questions(accepted)) == {message.content for message in messages if message.role is Role.USER}
    assert len(model.requests) - len(accepted) == 1


async def test_tokens_of_a_failed_attempt_do_not_hide_a_truncation(store: TenantStore) -> None:
    window = 4096

    def write(request: ChatRequest, context: CallContext) -> Answer:
        if len(model.requests) == 1:
            context.attempt.sent = True
            return llm.BackendUnavailable("gone")
        return truncated(request, window)

    model, gateway = ScriptedModel(write), config("vast")
    gateway = gateway.model_copy(update={"llm": gateway.llm.model_copy(update={"retries": 1, "retry_base_delay": 0.01})})
    messages = conversation(1000, 40)
    await summarise(model, make_scope(store), messages, gateway)
    accepted = [request for request in model.requests if fits(request, window)]
    assert set(questions(accepted)) == {message.content for message in messages if message.role is Role.USER}


async def test_a_provider_with_rounded_token_counts_causes_no_endless_loop(store: TenantStore) -> None:
    model = summary_model(lambda _: [ChatDelta("Ana.", usage=TokenUsage(4096, 2))])
    await summarise(model, make_scope(store), conversation(300), config("vast"))
    assert len(model.requests) < 10


@pytest.mark.parametrize("tokens", [0, 10, 1023])
async def test_very_small_token_counts_are_not_taken_for_a_truncation(store: TenantStore, tokens: int) -> None:
    model = summary_model(lambda _: [ChatDelta("Ana.", usage=TokenUsage(tokens, 2))])
    await summarise(model, make_scope(store), conversation(500), config("vast"))
    assert len(model.requests) == 1


async def test_a_model_with_a_tiny_window_is_not_called(store: TenantStore) -> None:
    gateway = config("tiny")
    models = tuple(one.model_copy(update={"context_window": 200}) for one in gateway.models)
    model = summary_model(lambda _: summary_deltas("Ana."))
    with pytest.raises(SummaryFailed) as raised:
        await summarise(model, make_scope(store), conversation(1), gateway.model_copy(update={"models": models}))
    assert raised.value.details["reason"] == "context_length_exceeded"
    assert model.requests == []


async def test_a_conversation_far_too_long_for_a_window_makes_no_call(store: TenantStore) -> None:
    model = summary_model(lambda _: summary_deltas("Ana."))
    with pytest.raises(SummaryFailed) as raised:
        await summarise(model, make_scope(store), [Message(Role.USER, "word " * 40_000)], config("tiny"))
    assert raised.value.details["reason"] == "context_length_exceeded"
    assert model.requests == []


async def test_a_model_whose_summaries_never_get_shorter_fails(store: TenantStore) -> None:
    """Two summaries of such a model never fit one request, so without a limit the rounds would not end."""

    def write(request: ChatRequest) -> Answer:
        return (
            llm.BackendContextLength("too long")
            if merges(request) and len(material(request)) > 1
            else summary_deltas("copied " * 400)
        )

    model = summary_model(write)
    with pytest.raises(SummaryFailed) as raised:
        await summarise(model, make_scope(store), conversation(5, 3500), config("roomy"))
    assert raised.value.details["reason"] == "context_length_exceeded"
    assert len(model.requests) < 30


@pytest.mark.parametrize("model_name", ["unserved", "gone"])
async def test_a_model_without_a_backend_fails_the_summary(store: TenantStore, model_name: str) -> None:
    model = summary_model(lambda _: summary_deltas("Ana."))
    with pytest.raises(SummaryFailed) as raised:
        await summarise(model, make_scope(store), conversation(1), config(None), fallback_model=model_name)
    assert raised.value.details["reason"] == {"unserved": "no_backend_available", "gone": "model_not_found"}[model_name]


async def test_a_request_without_time_left_fails_the_summary(store: TenantStore) -> None:
    scope, model = replace(make_scope(store), deadline=Deadline.after(0)), summary_model(lambda _: summary_deltas("Ana."))
    with pytest.raises(SummaryFailed) as raised:
        await summarise(model, scope, conversation(1))
    assert raised.value.details["reason"] == "upstream_timeout"


@pytest.mark.parametrize("turns", [1, 30])
@pytest.mark.parametrize(
    ("limit", "error"), [({"monthly_budget_usd": "0.0000001"}, BudgetExceeded), ({"tokens_per_minute": 1}, RateLimited)]
)
async def test_limits_of_the_tenant_are_raised_unchanged(
    store: TenantStore, limit: dict[str, Any], error: type[SpassError], turns: int
) -> None:
    model = summary_model(lambda _: summary_deltas("Ana."))
    summarizer = summarizer_over(model, config(**limit))
    with pytest.raises(error) as raised:
        for _ in range(2):  # the first call may be admitted, and uses up the limit
            await summarizer.summarise(
                make_scope(store), conversation(turns), earlier=None, mask_observations=True, fallback_model="own"
            )
    assert type(raised.value) is error
    assert raised.value.retry_after
    assert len(model.requests) <= 1


@pytest.mark.parametrize("turns", [1, 30])
async def test_errors_that_the_model_did_not_cause_are_raised_unchanged(store: TenantStore, turns: int) -> None:
    async def error_of(model: ScriptedModel, depth: int = 0) -> type[SpassError]:
        with pytest.raises(SpassError) as raised:
            await summarise(model, at_depth(make_scope(store), depth), conversation(turns))
        return type(raised.value)

    model = summary_model(lambda _: summary_deltas("Ana."))
    assert await error_of(model, depth=3) is RecursionDepthExceeded
    with inject(FaultPlan(Fault.THROTTLE, at=0, times=2)):
        assert await error_of(model) is StorageUnavailable
    assert model.requests == []


async def test_a_rate_limit_of_the_backends_fails_the_summary(store: TenantStore) -> None:
    model = summary_model(lambda _: llm.BackendRateLimited("slow down", retry_after=7))
    with pytest.raises(SummaryFailed) as raised:
        await summarise(model, make_scope(store), conversation(1))
    assert raised.value.details["reason"] == "rate_limited"
    assert raised.value.retry_after == pytest.approx(7, abs=1)


async def test_a_failed_call_is_audited(store: TenantStore) -> None:
    before, model = len(await audit_of(store)), summary_model(lambda _: llm.BackendBadRequest("no"))
    with pytest.raises(SummaryFailed):
        await summarise(model, make_scope(store), conversation(1))
    assert [record["status"] for record in (await audit_of(store))[before:]] == ["upstream_rejected"]
