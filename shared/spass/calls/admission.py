"""A tenant's own limits: tokens a minute and money a month, asked before a model is called and settled after."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.calls.scope import Scope
from spass.core.cost import Cost
from spass.core.errors import BudgetExceeded, RateLimited, SpassError
from spass.core.ids import TenantId
from spass.core.messages import TokenUsage
from spass.limits.shared_limit import Caps, NoCapacity, Reservation, SharedLimit, new_call_id, renew_while_running
from spass.metering.pricing import decimal_text
from spass.metering.usage import spending_of_month
from spass.tenancy.settings import Cascade

_JITTER: Final = 0.1  # seconds at most, so that those who wait for the same moment do not all come at once


class CallReservation:
    """A call that may be made; ``hold`` is what is reserved for it, if its tenant has limits."""

    def __init__(self, hold: Reservation | None = None) -> None:
        self._hold = hold
        self._kept = AsyncExitStack()

    @property
    def limited(self) -> bool:
        return self._hold is not None

    async def keep(self) -> None:
        """Keeps the reservation until it is settled."""
        if self._hold is not None:
            await self._kept.enter_async_context(renew_while_running(self._hold))

    async def settle(self, usage: TokenUsage, cost: Cost) -> None:
        """What it really took takes the place of what was reserved. Never raises."""
        if self._hold is not None:
            await self._kept.aclose()
            await self._hold.settle(tokens=usage.total_tokens, usd=cost.usd)


@dataclass(frozen=True, slots=True)
class _Limit:
    """The limit of one tenant, as of its settings then."""

    caps: Caps
    shared: SharedLimit


class Admission:
    """Lets calls through, or not. One for the process."""

    def __init__(
        self,
        cascade: Cascade,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cascade = cascade
        self._clock = clock
        self._sleep = sleep
        self._limits: dict[TenantId, _Limit] = {}

    async def admit(self, scope: Scope, expected: TokenUsage, cost: Cost) -> CallReservation:
        """Reserves what a call is ``expected`` to take and to ``cost``: nothing, where its price is not known. A tenant without
        limits costs no call of the table.

        Raises:
            RateLimited, BudgetExceeded: the tenant has no room for it; ``retry_after`` says when it will.
            StorageUnavailable: whether there is room cannot be known now.
        """
        settings = await self._cascade.effective(scope.store, fresh=scope.fresh)
        caps = Caps(tokens_per_minute=settings.tokens_per_minute, usd_per_month=settings.monthly_budget_usd)
        if caps == Caps():
            return CallReservation()
        limit = self._limit_of(scope.store, caps)
        patience = min(scope.max_wait, scope.deadline.remaining())

        async def reserved() -> Reservation | NoCapacity:
            seconds = scope.deadline.remaining()
            return await limit.reserve(new_call_id(), tokens=expected.total_tokens, usd=cost.usd, seconds=seconds)

        while isinstance(answer := await reserved(), NoCapacity):
            if answer.retry_after > patience:
                raise _refusal(caps, answer, limit)
            wait = answer.retry_after + random.uniform(0, _JITTER)  # noqa: S311 (jitter)
            patience -= wait
            await self._sleep(wait)
        admitted = CallReservation(answer)
        await admitted.keep()
        return admitted

    def _limit_of(self, store: TenantStore, caps: Caps) -> SharedLimit:
        known = self._limits.get(store.tenant)
        if known is None or known.caps != caps:
            shared = SharedLimit(
                store.table,
                partial(keys.tenant_limit, store.tenant),
                caps,
                clock=self._clock,
                spent_before=partial(spending_of_month, store),
            )
            known = self._limits[store.tenant] = _Limit(caps, shared)
        return known.shared


def _refusal(caps: Caps, full: NoCapacity, limit: SharedLimit) -> SpassError:
    seconds = math.ceil(full.retry_after)
    if full.by in ("budget", "reserved") and caps.usd_per_month is not None:
        is_reserved = f"What is left of this month's budget is reserved by calls under way. Try again in {seconds} s."
        is_spent = "The budget of this month is spent. An administrator of the tenant can raise it."
        return BudgetExceeded(
            is_reserved if full.by == "reserved" else is_spent,
            details={
                "limit": "monthly_budget_usd",
                "budget_usd": decimal_text(caps.usd_per_month.normalize()),
                "spent_usd": decimal_text(limit.spent.normalize()),
            },
            retry_after=full.retry_after,
        )
    if full.by == "tokens":
        return RateLimited(
            f"The limit of {caps.tokens_per_minute} tokens a minute is reached. Try again in {seconds} s.",
            details={"limit": "tokens_per_minute", "tokens_per_minute": caps.tokens_per_minute},
            retry_after=full.retry_after,
        )
    return RateLimited("Too many calls begin at once. Try again.", retry_after=full.retry_after)
