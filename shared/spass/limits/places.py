"""Bound the requests of a tenant that are in progress, over all workers, so that one tenant cannot take the gateway from others.

A request that calls a model, embeds or runs code is a turn. A client that follows the stream of another request keeps a
connection, and in AWS a function, for up to 14 minutes at the price of no model call.
"""

import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, Literal, TypeAlias

from spass.core.errors import RateLimited
from spass.core.ids import TenantId
from spass.core.time import Clock
from spass.limits.shard import Reservation, Shard
from spass.limits.shard_state import Caps, NoCapacity, ReservationRequest, new_call_id
from spass.store.keys import Key, followers_limit, turns_limit
from spass.store.tenant_store import TenantStore

PlaceKind: TypeAlias = Literal["turns", "followers"]
"""A kind of request, which is the name of the operator's bound."""

_KEYS: Final[Mapping[PlaceKind, Callable[[TenantId, int], Key]]] = {"turns": turns_limit, "followers": followers_limit}
_MESSAGES: Final[Mapping[PlaceKind, str]] = {
    "turns": "This tenant has as many requests in progress that call models, embed or run code as the operator allows: {}. "
    "Try again when one of them has ended.",
    "followers": "This tenant's clients already follow as many streams as the operator allows: {}. Close one, or try again.",
}
_RETRY_SECONDS: Final = 1.0
_MAX_AGE: Final = 1.0  # seconds, of the number of requests in progress that a refusal names


class Places:
    """The places of all tenants. ``allowed`` returns how many of a kind a tenant has. A process has one object of this class."""

    def __init__(self, allowed: Callable[[TenantId, PlaceKind], int], clock: Clock = time.time) -> None:
        self._allowed = allowed
        self._clock = clock
        self._shards: dict[tuple[TenantId, PlaceKind], Shard] = {}

    async def take(self, store: TenantStore, kind: PlaceKind) -> Reservation:
        """Take a place of the tenant of ``store``. Settle it at the end of the request; the place of a dead worker is free within
        60 seconds.

        Raises:
            RateLimited: all places are taken.
            StorageUnavailable: the table does not answer.
        """
        shard = self._shard_of(store, kind)
        place = await shard.reserve(ReservationRequest(new_call_id(), tokens=0, usd=Decimal(0)))
        if isinstance(place, NoCapacity):
            allowed = shard.share.concurrent
            raise RateLimited(
                _MESSAGES[kind].format(allowed),
                details={"of": "tenant", "limit": kind, "in_use": await shard.count_in_flight(_MAX_AGE), "allowed": allowed},
                retry_after=_RETRY_SECONDS,
            )
        place.renew_until_settled()
        return place

    def _shard_of(self, store: TenantStore, kind: PlaceKind) -> Shard:
        """Return the one item with all places of the tenant: a refusal is one call of the table."""
        name = (store.tenant, kind)
        if name not in self._shards:
            caps = Caps(concurrent=self._allowed(store.tenant, kind))
            self._shards[name] = Shard(store.table, _KEYS[kind](store.tenant, 0), caps, self._clock)
        return self._shards[name]
