"""Reserve a tenant's tokens per minute and money per month before a model is called, and settle them after it."""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from typing import Final

from spass.calls.scope import Scope
from spass.core.cost import Cost, decimal_text
from spass.core.errors import BudgetExceeded, RateLimited, SpassError
from spass.core.ids import TenantId
from spass.core.messages import TokenUsage
from spass.limits.shard import Reservation
from spass.limits.shard_state import Caps, NoCapacity, new_call_id
from spass.limits.shared_limit import SharedLimit
from spass.metering.usage import spending_of_month
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.tenancy.settings import Cascade

_MAX_JITTER: Final = 0.1  # seconds: calls that wait for the same moment must not all retry at that moment


class Admission:
    """Admit calls within their tenants' limits. A process has one instance."""

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
        self._limits: dict[TenantId, SharedLimit] = {}

    @asynccontextmanager
    async def admit(self, scope: Scope, expected: TokenUsage, cost: Cost) -> AsyncIterator[Reservation | None]:
        """Reserve the ``expected`` tokens and ``cost`` of a call. On exit, give them back if the body has not settled them.

        A model without a known price reserves no money. A tenant without limits has no reservation and needs no table call.

        Raises:
            RateLimited, BudgetExceeded: the tenant has no capacity left; ``retry_after`` is in seconds.
            StorageUnavailable: the limits cannot be read now.
        """
        reservation = await self._reserve(scope, expected, cost)
        try:
            yield reservation
        finally:
            if reservation is not None:
                await reservation.settle(tokens=0)

    async def _reserve(self, scope: Scope, expected: TokenUsage, cost: Cost) -> Reservation | None:
        settings = (await self._cascade.effective(scope.store, bypass_cache=scope.bypass_cache)).config
        caps = Caps(tokens_per_minute=settings.tokens_per_minute, usd_per_month=settings.monthly_budget_usd)
        if caps == Caps():
            return None
        limit = self._limit_of(scope.store, caps)
        seconds_to_wait = scope.seconds_to_wait

        async def attempt() -> Reservation | NoCapacity:
            seconds = scope.deadline.remaining()
            return await limit.reserve(new_call_id(), tokens=expected.total_tokens, usd=cost.usd, seconds=seconds)

        while isinstance(answer := await attempt(), NoCapacity):
            if answer.retry_after > seconds_to_wait:
                raise _error_for(answer, limit, cost.usd)
            wait = answer.retry_after + random.uniform(0, _MAX_JITTER)  # noqa: S311 (jitter)
            seconds_to_wait -= wait
            await (scope.first_sleep or self._sleep)(wait)
        answer.renew_until_settled()
        return answer

    def _limit_of(self, store: TenantStore, caps: Caps) -> SharedLimit:
        limit = self._limits.get(store.tenant)
        if limit is None or limit.caps != caps:
            limit = self._limits[store.tenant] = SharedLimit(
                store.table,
                partial(keys.tenant_limit, store.tenant),
                caps,
                clock=self._clock,
                spent_before=partial(spending_of_month, store),
            )
        return limit


def _error_for(full: NoCapacity, limit: SharedLimit, usd: Decimal) -> SpassError:
    """Return the error of a call that would reserve ``usd``."""
    caps, seconds = limit.caps, math.ceil(full.retry_after)
    if full.by in ("budget", "reserved") and caps.usd_per_month is not None:
        if full.by == "reserved":
            message = f"Calls in flight have reserved the rest of this month's budget. Try again in {seconds} s."
        else:
            message = _describe_budget(caps.usd_per_month, caps.usd_per_month - limit.spent, usd)
        return BudgetExceeded(
            message,
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
    return RateLimited("Too many calls started at the same time. Try again.", retry_after=full.retry_after)


def _describe_budget(budget: Decimal, left: Decimal, usd: Decimal) -> str:
    if budget and 0 < left < usd:
        cost, rest = decimal_text(usd.normalize()), decimal_text(left.normalize())
        return (
            f"This call may cost {cost} US dollars, and {rest} of this month's budget are left. A smaller request can fit: send "
            "a smaller max_tokens or a shorter prompt. Ask an administrator of the tenant, or the operator, for a larger budget."
        )
    return f"This month's budget is {'spent' if budget else '0'}. Ask an administrator of the tenant, or the operator, for more."
