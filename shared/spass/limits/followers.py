"""Bound the clients of a tenant that follow streams of other requests, over all workers.

Each of them keeps a connection, and in AWS a function, for up to 14 minutes at the price of no model call.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from spass.core.errors import RateLimited
from spass.core.ids import TenantId
from spass.core.time import Clock
from spass.limits.shard_state import Caps, NoCapacity
from spass.limits.shared_limit import SharedLimit, new_call_id
from spass.store.keys import followers_limit
from spass.store.tenant_store import TenantStore


class Followers:
    """The places of followers, of which each tenant has ``allowed``. A process has one object of this class."""

    def __init__(self, allowed: int, clock: Clock = time.time) -> None:
        self._allowed = allowed
        self._clock = clock
        self._limits: dict[TenantId, SharedLimit] = {}

    @asynccontextmanager
    async def place(self, store: TenantStore) -> AsyncIterator[None]:
        """Hold a place of the tenant of ``store`` while the body runs, or raise ``RateLimited`` if all are taken. The place of a
        dead worker is free after a minute."""
        limit = self._limit_of(store)
        place = await limit.reserve(new_call_id(), tokens=0)
        if isinstance(place, NoCapacity):
            raise RateLimited(
                f"This tenant's clients already follow {self._allowed} streams, the most that the operator allows. Close one, or "
                "try again.",
                details={
                    "of": "tenant",
                    "limit": "followers",
                    "in_use": await limit.count_in_flight(),
                    "allowed": self._allowed,
                },
                retry_after=place.retry_after,
            )
        place.renew_until_settled()
        try:
            yield
        finally:
            await place.settle(tokens=0)

    def _limit_of(self, store: TenantStore) -> SharedLimit:
        if store.tenant not in self._limits:
            partition = partial(followers_limit, store.tenant)
            self._limits[store.tenant] = SharedLimit(store.table, partition, Caps(concurrent=self._allowed), clock=self._clock)
        return self._limits[store.tenant]
