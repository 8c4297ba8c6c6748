"""In which order the backends of a model are tried."""

from collections.abc import Sequence
from typing import Final, Protocol

from spass.tenancy.config import BackendConfig


class Strategy(Protocol):
    """Made once per router; asked once per request."""

    def order(self, backends: Sequence[BackendConfig]) -> list[BackendConfig]:
        """``backends``, all of which serve the model, the one to try first in front."""
        ...


class Failover:
    """By priority, and by their order in the file where it is the same."""

    def order(self, backends: Sequence[BackendConfig]) -> list[BackendConfig]:
        return sorted(backends, key=lambda backend: backend.priority)


STRATEGIES: Final[dict[str, type[Strategy]]] = {"failover": Failover}
