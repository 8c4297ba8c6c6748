"""Bound the requests of a tenant that are in progress, over all workers, so that one tenant cannot take the gateway from others.

A request that calls a model, embeds or runs code is a turn. A client that follows the stream of another request keeps a
connection, and in AWS a function, for up to 14 minutes at the price of no model call.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias

from spass.core.errors import RateLimited
from spass.core.ids import TenantId
from spass.core.time import Clock
from spass.limits.shard import Reservation
from spass.limits.shard_state import Caps, NoCapacity
from spass.limits.shared_limit import SharedLimit, new_call_id
from spass.store.keys import Key, followers_limit, turns_limit
from spass.store.tenant_store import TenantStore

PlaceKind: TypeAlias = Literal["turns", "followers"]
"""A kind of request, which is the name of the operator's bound."""

_KEYS: Final[Mapping[PlaceKind, Callable[[TenantId, int], Key]]] = {"turns": turns_limit, "followers": followers_limit}
_MESSAGES: Final[Mapping[PlaceKind, str]] = {
    "turns": "This tenant has {} requests in progress that call models, embed or run code, the most that the operator "
    "allows. Try again when one of them has ended.",
    "followers": "This tenant's clients already follow {} streams, the most that the operator allows. Close one, or try again.",
}
_RETRY_SECONDS: Final = 1.0


class Places:
    """The places of all tenants. ``allowed`` returns how many of a kind a tenant has. A process has one object of this class."""

    def __init__(self, allowed: Callable[[TenantId, PlaceKind], int], clock: Clock = time.time) -> None:
        self._allowed = allowed
        self._clock = clock
        self._limits: dict[tuple[TenantId, PlaceKind], SharedLimit] = {}

    async def take(self, store: TenantStore, kind: PlaceKind) -> Reservation:
        """Take a place of the tenant of ``store``. Settle it at the end of the request; the place of a dead worker is free within
        60 seconds.

        Raises:
            RateLimited: all places are taken.
            StorageUnavailable: the table does not answer.
        """
        limit = self._limit_of(store, kind)
        place = await limit.reserve(new_call_id(), tokens=0)
        if isinstance(place, NoCapacity):
            allowed = limit.caps.concurrent
            raise RateLimited(
                _MESSAGES[kind].format(allowed),
                details={"of": "tenant", "limit": kind, "in_use": await limit.count_in_flight(), "allowed": allowed},
                retry_after=_RETRY_SECONDS,
            )
        place.renew_until_settled()
        return place

    def _limit_of(self, store: TenantStore, kind: PlaceKind) -> SharedLimit:
        name = (store.tenant, kind)
        if name not in self._limits:
            caps = Caps(concurrent=self._allowed(store.tenant, kind))
            partition = partial(_KEYS[kind], store.tenant)
            self._limits[name] = SharedLimit(store.table, partition, caps, clock=self._clock, max_shards=1)
        return self._limits[name]
