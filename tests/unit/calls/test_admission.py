"""Test a tenant's limits: admission, ``retry_after`` and settlement. Time is simulated."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from spass.calls import pipeline
from spass.calls.admission import Admission
from spass.calls.pipeline import Calls
from spass.calls.scope import JOB_MAX_WAIT, REQUEST_MAX_WAIT, Scope
from spass.core.errors import BudgetExceeded, InputRefused, RateLimited, SpassError, StorageUnavailable, UpstreamError
from spass.core.ids import TenantId
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.limits.shard_state import NoCapacity
from spass.limits.shared_limit import SharedLimit
from spass.metering.usage import reset, spending_of_month
from spass.models.errors import BackendTimeout, BackendUnavailable
from spass.models.types import ChatDelta, ChatReply, ChatRequest
from spass.store.table import TenantTable
from spass.store.tenant_store import TenantStore
from spass.tenancy.settings import Cascade, EffectiveConfig
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.testing.model import ScriptedModel
from tests.unit.calls.scripted_provider import CONFIG, calls_of, make_scope, scripted_model, vectors_of
from tests.unit.collected_replies import collect_deltas

pytestmark = pytest.mark.anyio


NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
MILLION = TokenUsage(1_000_000, 0)
"""Tokens that cost half a dollar with the model ``small``."""


class Limits(Cascade):
    """Settings that a test can change at any time."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.tokens: int | None = None
        self.budget: str | None = None

    async def effective(self, store: TenantStore, *, bypass_cache: bool = False) -> EffectiveConfig:
        budget = None if self.budget is None else Decimal(self.budget)
        settings = await super().effective(store, bypass_cache=bypass_cache)
        config = settings.config.model_copy(update={"tokens_per_minute": self.tokens, "monthly_budget_usd": budget})
        return EffectiveConfig(config=config, sources=settings.sources)


@dataclass
class AdmissionHarness:
    """A pipeline with the limits ``limits`` and the clock ``now``."""

    store: TenantStore
    limits: Limits = field(default_factory=Limits)
    provider: ScriptedModel = field(default_factory=scripted_model)
    now: float = NOON
    pauses: list[float] = field(default_factory=list)
    on_sleep: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self.calls = self.worker()

    def worker(self) -> Calls:
        """Return the pipeline of another process."""
        return calls_of(self.provider, admission=Admission(self.limits, clock=lambda: self.now, sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        if self.on_sleep:
            await self.on_sleep()

    async def ask(
        self, *, usage: TokenUsage = MILLION, answer: int = 1, model: str = "small", by: Calls | None = None
    ) -> ChatReply:
        """Ask for an answer of at most ``answer`` tokens. The model reports the usage ``usage``."""
        self.provider.script = [ChatDelta(finish_reason=FinishReason.STOP, usage=usage)]
        chat = (by or self.calls).chat(make_scope(self.store), question(answer, model))
        return collect_deltas([delta async for delta in chat])


def question(answer: int, model: str = "small") -> ChatRequest:
    """Return a chat whose prompt is estimated as two tokens."""
    return ChatRequest(model, (Message(Role.USER, "What?!"),), max_tokens=answer)


@pytest.fixture
def harness(store: TenantStore) -> AdmissionHarness:
    return AdmissionHarness(store)


async def expect_refusal(harness: AdmissionHarness, error: type[SpassError], *, answer: int = 1) -> SpassError:
    with pytest.raises(error) as refusal:
        await harness.ask(answer=answer)
    return refusal.value


async def table_calls(harness: AdmissionHarness) -> list[str]:
    await harness.ask()  # the first one also reads the settings
    with inject(FaultPlan()) as plan:
        await harness.ask()
    return sorted(call.operation for call in plan.calls)


async def test_a_tenant_without_limits_needs_only_the_transaction_of_the_record(harness: AdmissionHarness) -> None:
    assert await table_calls(harness) == ["TransactWriteItems"]


@pytest.mark.parametrize(("tokens", "budget"), [(10**9, None), (None, "100"), (10**9, "100")])
async def test_limits_need_one_table_call_before_and_one_after(
    harness: AdmissionHarness, tokens: int | None, budget: str | None
) -> None:
    harness.limits.tokens, harness.limits.budget = tokens, budget
    assert await table_calls(harness) == ["TransactWriteItems", "UpdateItem", "UpdateItem"]


async def test_a_call_over_the_token_limit_is_refused_with_retry_after(
    harness: AdmissionHarness,
) -> None:
    harness.limits.tokens = 1000
    await harness.ask(answer=900, usage=TokenUsage(2, 900))
    error = await expect_refusal(harness, RateLimited, answer=100)
    assert error.details == {"limit": "tokens_per_minute", "tokens_per_minute": 1000}
    assert error.retry_after is not None
    assert 55 <= error.retry_after <= 65
    assert len(harness.provider.requests) == 1
    assert harness.pauses == []
    harness.now += error.retry_after - REQUEST_MAX_WAIT - 1
    await expect_refusal(harness, RateLimited, answer=100)
    harness.now += REQUEST_MAX_WAIT + 1
    await harness.ask(answer=100)
    assert harness.pauses == []


async def test_a_request_waits_a_moment_for_tokens(harness: AdmissionHarness) -> None:
    harness.limits.tokens = 1000
    await harness.ask(answer=900, usage=TokenUsage(2, 900))
    retry_after = (await expect_refusal(harness, RateLimited, answer=100)).retry_after
    assert retry_after is not None
    harness.now += retry_after - REQUEST_MAX_WAIT + 0.5
    await harness.ask(answer=100)
    assert sum(harness.pauses) == pytest.approx(REQUEST_MAX_WAIT - 0.5, abs=0.2)


async def test_a_job_that_would_lose_its_calls_waits_until_the_minute_has_passed(harness: AdmissionHarness) -> None:
    harness.limits.tokens, harness.limits.budget = 100, "0.1"
    harness.provider.vectors = vectors_of(40)
    job = replace(Scope.for_job(harness.store, Deadline.after(600), route="compact"), max_wait=JOB_MAX_WAIT)
    for _ in range(3):
        await harness.calls.embed(job, ["a" * 160, "b" * 160])
    assert 110 <= sum(harness.pauses) <= 140
    harness.limits.budget = "0.00001"
    with pytest.raises(BudgetExceeded):  # the job does not wait for the next month
        await harness.calls.embed(job, ["a" * 160, "b" * 160])


async def test_the_used_tokens_replace_the_reserved_ones(harness: AdmissionHarness) -> None:
    harness.limits.tokens = 1000
    await harness.ask(answer=900, usage=TokenUsage(2, 8))
    await harness.ask(answer=900, usage=TokenUsage(2, 900))
    await expect_refusal(harness, RateLimited, answer=100)


async def test_extra_tokens_of_a_call_longer_than_a_minute_count(harness: AdmissionHarness) -> None:
    async def pass_time() -> None:
        harness.now += 90

    harness.limits.tokens = 1000
    harness.provider.before_chat = pass_time
    for _ in range(3):
        await harness.ask(answer=28, usage=TokenUsage(2, 33_000))
        error = await expect_refusal(harness, RateLimited, answer=28)
        assert error.retry_after is not None
        assert error.retry_after > 60
        harness.now += 66


async def test_a_call_that_fails_before_its_answer_gives_everything_back(harness: AdmissionHarness) -> None:
    harness.limits.tokens, harness.limits.budget = 1000, "0.001"
    harness.provider.failure = BackendUnavailable("down")
    for _ in range(3):
        with pytest.raises(UpstreamError):
            _ = [delta async for delta in harness.calls.chat(make_scope(harness.store), question(answer=600))]
    harness.provider.failure = None
    await harness.ask(answer=600, usage=TokenUsage(2, 600))
    await expect_refusal(harness, BudgetExceeded, answer=600)


async def test_a_call_with_a_lost_answer_is_settled_with_the_reserved_tokens(harness: AdmissionHarness) -> None:
    harness.limits.tokens, harness.limits.budget = 1200, "0.002"
    harness.provider.failure = BackendTimeout("late")
    harness.provider.sent = True
    with pytest.raises(UpstreamError):
        _ = [delta async for delta in harness.calls.chat(make_scope(harness.store), question(answer=600))]
    harness.provider.failure = None
    assert (await expect_refusal(harness, BudgetExceeded, answer=800)).details["spent_usd"] == "0.000901"  # 2 and 600 tokens
    harness.limits.budget = None
    await expect_refusal(harness, RateLimited, answer=597)
    await harness.ask(answer=596)


async def test_a_request_that_the_defence_refuses_gives_everything_back(
    harness: AdmissionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: ChatRequest) -> None:
        raise InputRefused("Refused.")

    harness.limits.tokens = 1000
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "sanitize_request", refuse)
        for _ in range(3):
            await expect_refusal(harness, InputRefused, answer=900)
    await harness.ask(answer=900)


async def test_a_call_over_the_budget_is_refused_until_the_end_of_the_month(harness: AdmissionHarness) -> None:
    harness.limits.budget = "1"
    for _ in range(2):
        await harness.ask()
    error = await expect_refusal(harness, BudgetExceeded)
    # The opening balance is read from the usage rows, which have the real month.
    spending = await spending_of_month(harness.store, "2026-11")
    assert error.details == {"limit": "monthly_budget_usd", "budget_usd": "1", "spent_usd": str(spending)}
    december = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    assert error.retry_after == pytest.approx(december - harness.now)
    harness.now = december + 1
    await harness.ask()


async def test_a_job_waits_for_reserved_money_and_a_request_is_refused(
    harness: AdmissionHarness,
) -> None:
    harness.limits.budget = "0.001"
    harness.provider.script = [ChatDelta("Hello. "), ChatDelta("Bye.", usage=TokenUsage(2, 8))]
    answer = harness.calls.chat(make_scope(harness.store), question(answer=600))
    await anext(answer)
    error = await expect_refusal(harness, BudgetExceeded, answer=600)
    assert "Calls in flight" in error.message
    assert error.retry_after is not None
    assert 1 <= error.retry_after <= 5
    job = replace(Scope.for_job(harness.store, Deadline.after(600), route="compact"), max_wait=JOB_MAX_WAIT)
    harness.on_sleep = lambda: answer.aclose()
    harness.provider.vectors = vectors_of(1)
    await harness.calls.embed(job, ["a" * 8000] * 4)
    assert len(harness.pauses) == 1


async def test_a_refusal_after_too_many_lost_races_does_not_name_a_limit(
    harness: AdmissionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_races(*_: object, **__: object) -> NoCapacity:
        return NoCapacity(0.1, "concurrent")

    monkeypatch.setattr(SharedLimit, "reserve", lose_races)
    harness.limits.budget = "1"
    error = await expect_refusal(harness, RateLimited)
    assert "None" not in error.message
    assert error.details == {}
    assert error.retry_after == 0.1


async def test_a_reset_of_the_usage_does_not_free_budget(harness: AdmissionHarness) -> None:
    harness.now = datetime.now(UTC).timestamp()
    harness.limits.budget = "1"
    for _ in range(2):
        await harness.ask()
    await reset(harness.store)
    await expect_refusal(harness, BudgetExceeded)
    harness.calls = harness.worker()
    harness.limits.budget = "0.9"  # the opening balance is computed again from the rows
    await expect_refusal(harness, BudgetExceeded)


async def test_a_new_budget_counts_the_cost_of_the_month_so_far(harness: AdmissionHarness) -> None:
    harness.now = datetime.now(UTC).timestamp()
    for _ in range(3):
        await harness.ask()
    harness.limits.budget = "1.2"
    error = await expect_refusal(harness, BudgetExceeded)
    assert error.details["spent_usd"] == "1.5"
    harness.limits.budget = "2"
    await harness.ask()
    await expect_refusal(harness, BudgetExceeded)


async def test_a_budget_that_is_set_again_counts_the_cost_in_between(store: TenantStore) -> None:
    cascade, provider = Cascade(CONFIG), scripted_model()
    calls = calls_of(provider, admission=Admission(cascade))

    async def ask() -> None:
        provider.script = [ChatDelta(finish_reason=FinishReason.STOP, usage=MILLION)]
        collect_deltas([delta async for delta in calls.chat(make_scope(store), question(1))])

    for budget in (2, None, 2):
        await cascade.change(store, {"monthly_budget_usd": budget})
        for _ in range(2 if budget is None else 1):
            await ask()
    with pytest.raises(BudgetExceeded) as refusal:
        await ask()
    assert refusal.value.details["spent_usd"] == "2"


async def test_new_caps_apply_to_the_next_reservation(harness: AdmissionHarness) -> None:
    harness.limits.tokens = 1000
    await harness.ask(answer=900, usage=TokenUsage(2, 900))
    await expect_refusal(harness, RateLimited, answer=500)
    harness.limits.tokens = 2000
    await harness.ask(answer=500, usage=TokenUsage(2, 500))
    harness.limits.tokens = 1400
    await expect_refusal(harness, RateLimited, answer=10)
    harness.limits.tokens = None
    await harness.ask(answer=10)


async def test_a_model_without_a_price_reserves_no_money_but_its_cost_counts(
    harness: AdmissionHarness,
) -> None:
    harness.limits.budget = "1"
    harness.provider.script = [ChatDelta("Dear.", usage=TokenUsage(1, 1), cost_usd=Decimal(5))]
    _ = [delta async for delta in harness.calls.chat(make_scope(harness.store), question(100, "unpriced"))]
    await expect_refusal(harness, BudgetExceeded)


async def test_a_refusal_says_when_a_smaller_call_fits(harness: AdmissionHarness) -> None:
    harness.limits.budget = "0.501"
    await harness.ask()  # half a dollar
    refused = await expect_refusal(harness, BudgetExceeded, answer=1000)
    assert refused.message.startswith("This call may cost 0.001501 US dollars, and 0.001 of this month's budget are left.")
    assert "smaller max_tokens" in refused.message
    await harness.ask(answer=100)


@pytest.mark.parametrize(("budget", "state"), [("0", "0"), ("1", "spent")])
async def test_a_spent_budget_admits_only_calls_without_a_price(harness: AdmissionHarness, budget: str, state: str) -> None:
    harness.limits.budget = "10"
    for _ in range(3):
        await harness.ask()
    harness.limits.budget = budget
    error = await expect_refusal(harness, BudgetExceeded)
    assert error.message == f"This month's budget is {state}. Ask an administrator of the tenant, or the operator, for more."
    await harness.ask(model="unpriced")
    reply = await harness.calls.embed(make_scope(harness.store), ["text"], "other-embed")
    assert reply.count == 1
    await expect_refusal(harness, BudgetExceeded)


async def test_embeddings_are_limited(harness: AdmissionHarness) -> None:
    harness.limits.tokens = 100
    scope = make_scope(harness.store)
    harness.provider.vectors = vectors_of(40)
    await harness.calls.embed(scope, ["a" * 160, "b" * 160])
    with pytest.raises(RateLimited):
        await harness.calls.embed(scope, ["c" * 160])
    assert len(harness.provider.embeddings) == 1


async def test_all_workers_of_one_tenant_share_its_limits(harness: AdmissionHarness, aws: MemoryAws) -> None:
    harness.limits.tokens = 1000
    await harness.ask(answer=900, usage=TokenUsage(2, 900))
    other = harness.worker()
    with pytest.raises(RateLimited):
        await harness.ask(answer=900, by=other)
    harness.store = aws.for_tenant(TenantId("other"))
    await harness.ask(answer=900)


@pytest.mark.parametrize("fault", list(Fault))
async def test_no_fault_loses_capacity_or_exceeds_a_limit(harness: AdmissionHarness, fault: Fault) -> None:
    harness.limits.tokens = 1000
    await harness.ask(usage=TokenUsage(2, 1))
    for point in range(3):
        harness.now += 120
        with inject(FaultPlan(fault, at=point)) as plan, suppress(Crash, StorageUnavailable):
            await harness.ask(answer=900, usage=TokenUsage(2, 900))
        assert len(plan.calls) > point
        request_count = len(harness.provider.requests)
        harness.now += 1
        try:  # generated tokens are counted even if a reply was lost
            await harness.ask(answer=900, usage=TokenUsage(2, 900))
        except RateLimited:
            assert len(harness.provider.requests) == request_count
        harness.now += 120
        await harness.ask(answer=900, usage=TokenUsage(2, 900))


async def test_a_reservation_ends_with_the_deadline_of_its_request(
    harness: AdmissionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()

    async def block(*_: object) -> None:
        await release.wait()

    harness.limits.tokens = 1000
    scope = replace(make_scope(harness.store), deadline=Deadline.after(0.05))
    monkeypatch.setattr(TenantTable, "write", block)
    with pytest.raises(StorageUnavailable):
        async with asyncio.timeout(20):
            _ = [delta async for delta in harness.calls.chat(scope, question(1))]
    assert harness.provider.requests == []
    assert scope.deadline.remaining() == 0
    release.set()
