"""A tenant's own limits: who is let through, who is told when to come again, and what stays counted.

Time here is simulated.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from spass.aws.clients import Aws, TenantStore
from spass.aws.faults import Crash, Fault, FaultPlan, inject
from spass.aws.limits import Full, SharedLimit
from spass.aws.table import TenantTable
from spass.calls import pipeline
from spass.calls.admission import Admission
from spass.calls.pipeline import Calls
from spass.calls.scope import REQUEST_PATIENCE, Scope
from spass.core.errors import BudgetExceeded, InputRefused, RateLimited, SpassError, StorageUnavailable, UpstreamError
from spass.core.ids import TenantId
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.llm.errors import BackendTimedOut, BackendUnavailable
from spass.llm.types import ChatDelta, ChatReply, ChatRequest, collect_deltas
from spass.metering.usage import reset, spent_this_month
from spass.tenancy.settings import Cascade, TenantSettings
from tests.unit.calls.scripted import CONFIG, ScriptedProvider, make_scope

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(emulated_store: TenantStore) -> TenantStore:
    return emulated_store


NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
MILLION = TokenUsage(1_000_000, 0)
"""Of the model ``small`` this costs half a dollar."""


class Limits(Cascade):
    """Settings that a test changes at any time."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.tokens: int | None = None
        self.budget: str | None = None

    async def effective(self, store: TenantStore, *, fresh: bool = False) -> TenantSettings:
        budget = None if self.budget is None else Decimal(self.budget)
        return replace(await super().effective(store, fresh=fresh), tokens_per_minute=self.tokens, monthly_budget_usd=budget)


@dataclass
class Turnstile:
    """A pipeline whose limits are ``limits`` and whose clock is ``now``."""

    store: TenantStore
    limits: Limits = field(default_factory=Limits)
    provider: ScriptedProvider = field(default_factory=ScriptedProvider)
    now: float = NOON
    slept: list[float] = field(default_factory=list)
    on_sleep: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self.calls = self.worker()

    def worker(self) -> Calls:
        """One more process."""
        return self.provider.calls(admission=Admission(self.limits, clock=lambda: self.now, sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if self.on_sleep:
            await self.on_sleep()

    async def ask(
        self, *, takes: TokenUsage = MILLION, answer: int = 1, model: str = "small", by: Calls | None = None
    ) -> ChatReply:
        """A chat that may be ``answer`` tokens long and really ``takes`` so many."""
        self.provider.deltas = [ChatDelta(finish_reason=FinishReason.STOP, usage=takes)]
        chat = (by or self.calls).chat(make_scope(self.store), question(answer, model))
        return collect_deltas([delta async for delta in chat])


def question(answer: int, model: str = "small") -> ChatRequest:
    """Two tokens, as we estimate."""
    return ChatRequest(model, (Message(Role.USER, "What?!"),), max_tokens=answer)


@pytest.fixture
def turnstile(store: TenantStore) -> Turnstile:
    return Turnstile(store)


async def refused(turnstile: Turnstile, kind: type[SpassError], **asked: int) -> SpassError:
    with pytest.raises(kind) as caught:
        await turnstile.ask(answer=asked.get("answer", 1))
    return caught.value


async def table_calls(turnstile: Turnstile) -> list[str]:
    await turnstile.ask()  # the first one also reads the settings
    with inject(FaultPlan()) as plan:
        await turnstile.ask()
    return sorted(call.operation for call in plan.calls)


async def test_a_tenant_without_limits_costs_no_table_call_but_the_account(turnstile: Turnstile) -> None:
    assert await table_calls(turnstile) == ["TransactWriteItems"]


@pytest.mark.parametrize(("tokens", "budget"), [(10**9, None), (None, "100"), (10**9, "100")])
async def test_limits_cost_one_call_before_and_one_after(turnstile: Turnstile, tokens: int | None, budget: str | None) -> None:
    turnstile.limits.tokens, turnstile.limits.budget = tokens, budget
    assert await table_calls(turnstile) == ["TransactWriteItems", "UpdateItem", "UpdateItem"]


async def test_over_the_tokens_of_a_minute_nothing_is_asked_and_the_caller_is_told_when_to_come_again(
    turnstile: Turnstile,
) -> None:
    turnstile.limits.tokens = 1000
    await turnstile.ask(answer=900, takes=TokenUsage(2, 900))
    error = await refused(turnstile, RateLimited, answer=100)
    assert error.details == {"limit": "tokens_per_minute", "tokens_per_minute": 1000}
    assert error.retry_after is not None
    assert 55 <= error.retry_after <= 65
    assert len(turnstile.provider.requests) == 1
    assert turnstile.slept == []
    turnstile.now += error.retry_after - REQUEST_PATIENCE - 1
    await refused(turnstile, RateLimited, answer=100)
    turnstile.now += REQUEST_PATIENCE + 1
    await turnstile.ask(answer=100)
    assert turnstile.slept == []


async def test_a_moment_is_waited_for(turnstile: Turnstile) -> None:
    turnstile.limits.tokens = 1000
    await turnstile.ask(answer=900, takes=TokenUsage(2, 900))
    told = (await refused(turnstile, RateLimited, answer=100)).retry_after
    assert told is not None
    turnstile.now += told - REQUEST_PATIENCE + 0.5
    await turnstile.ask(answer=100)
    assert sum(turnstile.slept) == pytest.approx(REQUEST_PATIENCE - 0.5, abs=0.2)


async def test_work_that_nobody_waits_for_waits_until_the_minute_has_passed(turnstile: Turnstile) -> None:
    turnstile.limits.tokens, turnstile.limits.budget = 100, "0.1"
    turnstile.provider.embedding_tokens = 40
    job = Scope.of_job(turnstile.store, Deadline.after(600), route="ingest")
    for _ in range(3):
        await turnstile.calls.embed(job, ["a" * 160, "b" * 160])
    assert 110 <= sum(turnstile.slept) <= 140
    turnstile.limits.budget = "0.00001"
    with pytest.raises(BudgetExceeded):  # a month is not waited for
        await turnstile.calls.embed(job, ["a" * 160, "b" * 160])


async def test_what_a_call_really_took_takes_the_place_of_what_was_reserved(turnstile: Turnstile) -> None:
    turnstile.limits.tokens = 1000
    await turnstile.ask(answer=900, takes=TokenUsage(2, 8))
    await turnstile.ask(answer=900, takes=TokenUsage(2, 900))
    await refused(turnstile, RateLimited, answer=100)


async def test_tokens_a_minute_bind_calls_that_outlast_the_minute(turnstile: Turnstile) -> None:
    def pass_time() -> None:
        turnstile.now += 90

    turnstile.limits.tokens = 1000
    turnstile.provider.before_each = pass_time
    for _ in range(3):
        await turnstile.ask(answer=28, takes=TokenUsage(2, 33_000))
        error = await refused(turnstile, RateLimited, answer=28)
        assert error.retry_after is not None
        assert error.retry_after > 60
        turnstile.now += 66


async def test_a_call_that_generated_nothing_gives_everything_back(turnstile: Turnstile) -> None:
    turnstile.limits.tokens, turnstile.limits.budget = 1000, "0.001"
    turnstile.provider.failure = BackendUnavailable("down")
    for _ in range(3):
        turnstile.provider.deltas = []
        with pytest.raises(UpstreamError):
            _ = [delta async for delta in turnstile.calls.chat(make_scope(turnstile.store), question(answer=600))]
    turnstile.provider.failure = None
    await turnstile.ask(answer=600, takes=TokenUsage(2, 600))
    await refused(turnstile, BudgetExceeded, answer=600)


async def test_a_call_whose_answer_is_lost_is_settled_as_it_was_reserved(turnstile: Turnstile) -> None:
    turnstile.limits.tokens, turnstile.limits.budget = 1200, "0.002"
    turnstile.provider.deltas, turnstile.provider.failure = [], BackendTimedOut("late")
    turnstile.provider.sent = True
    with pytest.raises(UpstreamError):
        _ = [delta async for delta in turnstile.calls.chat(make_scope(turnstile.store), question(answer=600))]
    turnstile.provider.failure = None
    assert (await refused(turnstile, BudgetExceeded, answer=800)).details["spent_usd"] == "0.000901"  # 2 and 600 tokens
    turnstile.limits.budget = None
    await refused(turnstile, RateLimited, answer=597)
    await turnstile.ask(answer=596)


async def test_a_request_that_is_refused_for_its_words_gives_everything_back(
    turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(request: ChatRequest) -> None:
        raise InputRefused("No.")

    turnstile.limits.tokens = 1000
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "defended", refuses)
        for _ in range(3):
            await refused(turnstile, InputRefused, answer=900)
    await turnstile.ask(answer=900)


async def test_over_the_budget_of_the_month_the_caller_is_told_of_it_and_of_the_months_end(turnstile: Turnstile) -> None:
    turnstile.limits.budget = "1"
    for _ in range(2):
        await turnstile.ask()
    error = await refused(turnstile, BudgetExceeded)
    # What was spent is read from the records, which are of the month that it really is.
    spent = await spent_this_month(turnstile.store, "2026-11")
    assert error.details == {"limit": "monthly_budget_usd", "budget_usd": "1", "spent_usd": str(spent)}
    december = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    assert error.retry_after == pytest.approx(december - turnstile.now)
    turnstile.now = december + 1
    await turnstile.ask()


async def test_money_that_a_call_under_way_may_give_back_is_asked_for_again_soon_and_waited_for_by_work_with_time(
    turnstile: Turnstile,
) -> None:
    turnstile.limits.budget = "0.001"
    turnstile.provider.deltas = [ChatDelta("Hello. "), ChatDelta("Bye.", usage=TokenUsage(2, 8))]
    under_way = turnstile.calls.chat(make_scope(turnstile.store), question(answer=600))
    await anext(under_way)
    error = await refused(turnstile, BudgetExceeded, answer=600)
    assert "calls under way" in error.message
    assert error.retry_after is not None
    assert 1 <= error.retry_after <= 5
    job = Scope.of_job(turnstile.store, Deadline.after(600), route="ingest")
    turnstile.on_sleep = lambda: under_way.aclose()
    turnstile.provider.embedding_tokens = 1
    await turnstile.calls.embed(job, ["a" * 8000] * 4)
    assert len(turnstile.slept) == 1


async def test_who_is_overtaken_too_often_hears_of_no_limit_that_there_is_not(
    turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def overtaken(*_: object, **__: object) -> Full:
        return Full(0.1, "concurrent")

    monkeypatch.setattr(SharedLimit, "reserve", overtaken)
    turnstile.limits.budget = "1"
    error = await refused(turnstile, RateLimited)
    assert "None" not in error.message
    assert error.details == {}
    assert error.retry_after == 0.1


async def test_a_reset_of_the_usage_gives_no_budget_back(turnstile: Turnstile) -> None:
    turnstile.now = datetime.now(UTC).timestamp()
    turnstile.limits.budget = "1"
    for _ in range(2):
        await turnstile.ask()
    await reset(turnstile.store)
    await refused(turnstile, BudgetExceeded)
    turnstile.calls = turnstile.worker()
    turnstile.limits.budget = "0.9"  # counted anew, from the rows
    await refused(turnstile, BudgetExceeded)


async def test_a_budget_that_is_new_counts_what_the_month_has_cost_so_far(turnstile: Turnstile) -> None:
    turnstile.now = datetime.now(UTC).timestamp()
    for _ in range(3):
        await turnstile.ask()
    turnstile.limits.budget = "1.2"
    error = await refused(turnstile, BudgetExceeded)
    assert error.details["spent_usd"] == "1.5"
    turnstile.limits.budget = "2"
    await turnstile.ask()
    await refused(turnstile, BudgetExceeded)


async def test_a_budget_that_was_off_for_a_while_counts_what_was_spent_meanwhile(store: TenantStore) -> None:
    cascade, provider = Cascade(CONFIG), ScriptedProvider()
    calls = provider.calls(admission=Admission(cascade))

    async def ask() -> None:
        provider.deltas = [ChatDelta(finish_reason=FinishReason.STOP, usage=MILLION)]
        collect_deltas([delta async for delta in calls.chat(make_scope(store), question(1))])

    for budget in (2, None, 2):
        await cascade.change(store, {"monthly_budget_usd": budget})
        for _ in range(2 if budget is None else 1):
            await ask()
    with pytest.raises(BudgetExceeded) as refused:
        await ask()
    assert refused.value.details["spent_usd"] == "2"


async def test_new_caps_hold_from_the_next_reservation_on(turnstile: Turnstile) -> None:
    turnstile.limits.tokens = 1000
    await turnstile.ask(answer=900, takes=TokenUsage(2, 900))
    await refused(turnstile, RateLimited, answer=500)
    turnstile.limits.tokens = 2000
    await turnstile.ask(answer=500, takes=TokenUsage(2, 500))
    turnstile.limits.tokens = 1400
    await refused(turnstile, RateLimited, answer=10)
    turnstile.limits.tokens = None
    await turnstile.ask(answer=10)


async def test_a_model_without_a_price_reserves_no_money_and_is_counted_with_what_its_provider_says(turnstile: Turnstile) -> None:
    turnstile.limits.budget = "1"
    turnstile.provider.deltas = [ChatDelta("Dear.", usage=TokenUsage(1, 1), cost_usd=Decimal(5))]
    _ = [delta async for delta in turnstile.calls.chat(make_scope(turnstile.store), question(100, "unpriced"))]
    await refused(turnstile, BudgetExceeded)


@pytest.mark.parametrize("budget", ["0", "1"])
async def test_a_spent_budget_lets_through_what_has_no_price(turnstile: Turnstile, budget: str) -> None:
    turnstile.limits.budget = "10"
    for _ in range(3):
        await turnstile.ask()
    turnstile.limits.budget = budget
    await refused(turnstile, BudgetExceeded)
    await turnstile.ask(model="unpriced")
    reply = await turnstile.calls.embed(make_scope(turnstile.store), ["text"], "other-embed")
    assert reply.count == 1
    await refused(turnstile, BudgetExceeded)


async def test_embeddings_take_part(turnstile: Turnstile) -> None:
    turnstile.limits.tokens = 100
    scope = make_scope(turnstile.store)
    turnstile.provider.embedding_tokens = 40
    await turnstile.calls.embed(scope, ["a" * 160, "b" * 160])
    with pytest.raises(RateLimited):
        await turnstile.calls.embed(scope, ["c" * 160])
    assert len(turnstile.provider.embeddings) == 1


async def test_all_workers_share_the_limits_and_no_other_tenant_does(turnstile: Turnstile) -> None:
    turnstile.limits.tokens = 1000
    await turnstile.ask(answer=900, takes=TokenUsage(2, 900))
    other = turnstile.worker()
    with pytest.raises(RateLimited):
        await turnstile.ask(answer=900, by=other)
    turnstile.store = Aws(table="spass", bucket="spass").for_tenant(TenantId("other"))
    await turnstile.ask(answer=900)


@pytest.mark.parametrize("fault", list(Fault))
async def test_whichever_call_goes_wrong_no_room_is_lost_for_good_and_no_limit_is_passed(
    turnstile: Turnstile, fault: Fault
) -> None:
    turnstile.limits.tokens = 1000
    await turnstile.ask(takes=TokenUsage(2, 1))
    for point in range(3):
        turnstile.now += 120
        with inject(FaultPlan(fault, at=point)) as plan, suppress(Crash, StorageUnavailable):
            await turnstile.ask(answer=900, takes=TokenUsage(2, 900))
        assert len(plan.calls) > point
        reached = len(turnstile.provider.requests)
        turnstile.now += 1
        try:  # what was generated is counted, whatever was lost
            await turnstile.ask(answer=900, takes=TokenUsage(2, 900))
        except RateLimited:
            assert len(turnstile.provider.requests) == reached
        turnstile.now += 120
        await turnstile.ask(answer=900, takes=TokenUsage(2, 900))


async def test_no_reservation_outlasts_its_request(turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch) -> None:
    unstuck = asyncio.Event()

    async def stuck(*_: object) -> None:
        await unstuck.wait()

    turnstile.limits.tokens = 1000
    scope = replace(make_scope(turnstile.store), deadline=Deadline.after(0.05))
    monkeypatch.setattr(TenantTable, "write", stuck)
    with pytest.raises(StorageUnavailable):
        async with asyncio.timeout(20):
            _ = [delta async for delta in turnstile.calls.chat(scope, question(1))]
    assert turnstile.provider.requests == []
    assert scope.deadline.remaining() == 0
    unstuck.set()
