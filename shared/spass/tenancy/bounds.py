"""What each tenant may have in progress at the same time: the operator's bounds, and a part of what the deployment can do."""

from typing import TYPE_CHECKING

from spass.core.ids import TenantId
from spass.core.jobs import WorkKind
from spass.tenancy.capacity import Capacity
from spass.tenancy.config import GatewayConfig

if TYPE_CHECKING:
    from spass.limits.places import PlaceKind


class Bounds:
    """The bounds in force of each tenant. No tenant takes more than half of what the deployment can do if there are others."""

    def __init__(self, config: GatewayConfig, capacity: Capacity) -> None:
        self._config = config
        self._capacity = capacity

    def places(self, tenant: TenantId, kind: "PlaceKind") -> int:
        """Return how many requests of ``kind`` the tenant may have in progress."""
        bound = self._config.bound_of(tenant, kind)
        return bound if kind == "turns" else self._share(bound, self._capacity.followers)

    def work(self, tenant: TenantId, kind: WorkKind) -> int:
        """Return how many messages of ``kind`` the tenant may have on the queue or in work."""
        config, capacity = self._config, self._capacity
        match kind:
            case WorkKind.RUNS:
                return self._share(config.bound_of(tenant, "runs"), capacity.runs)
            case WorkKind.FILES:
                return self._share(config.bound_of(tenant, "jobs"), capacity.jobs)
            case WorkKind.COMPACTIONS:
                return self._share(capacity.compactions, capacity.compactions)

    def _share(self, bound: int, capacity: int | None) -> int:
        if capacity is None:
            return bound
        return min(bound, max(1, capacity // 2) if len(self._config.tenants) > 1 else capacity)
