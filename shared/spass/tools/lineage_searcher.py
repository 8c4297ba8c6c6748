"""The interface of ``sessions`` for the tool ``lineage_search``. This package must not import ``sessions``, a layer above it."""

from dataclasses import dataclass
from typing import Final, Protocol

from spass.calls.scope import Scope
from spass.core.ids import SessionId
from spass.core.messages import Role
from spass.core.time import Timestamp

LINEAGE_SEARCH: Final = "lineage_search"


@dataclass(frozen=True, slots=True)
class LineageHit:
    """A compacted message that matched: its place and an excerpt."""

    session: SessionId
    seq: int
    role: Role
    excerpt: str
    created_at: Timestamp
    score: float


@dataclass(frozen=True, slots=True)
class LineageSearchResult:
    """Hits, best first. ``searched`` is the number of messages that were read. ``truncated``: some were not read."""

    results: tuple[LineageHit, ...]
    searched: int
    truncated: bool


class LineageSearcher(Protocol):
    """Search the compacted messages of a session and of its ancestors."""

    async def search(self, scope: Scope, query: str, limit: int) -> LineageSearchResult:
        """Return the best ``limit`` compacted messages of the session of ``scope`` and its ancestors.

        Raises:
            SessionNotFound, SessionAgentMismatch: the scope's caller has no such session with the scope's agent.
            StorageUnavailable: AWS throttled all retries or was unreachable.
        """
        ...
