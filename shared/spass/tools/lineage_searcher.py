"""What the tool ``lineage_search`` needs of ``sessions``; said here so that a tool is told no more and tests need no store."""

from dataclasses import dataclass
from typing import Final, Protocol

from spass.calls.scope import Scope
from spass.core.ids import SessionId
from spass.core.messages import Role
from spass.core.time import Timestamp

LINEAGE_SEARCH: Final = "lineage_search"


@dataclass(frozen=True, slots=True)
class LineageHit:
    """A message that was compacted: where it stands, and what of it was looked for."""

    session: SessionId
    seq: int
    role: Role
    excerpt: str
    created_at: Timestamp
    score: float


@dataclass(frozen=True, slots=True)
class LineageSearchResult:
    """The best first. ``searched`` is how many messages were looked at; ``truncated``: there are more."""

    results: tuple[LineageHit, ...]
    searched: int
    truncated: bool


class LineageSearcher(Protocol):
    """The compacted messages of a session and of those before it."""

    async def search(self, scope: Scope, query: str, limit: int) -> LineageSearchResult:
        """The best ``limit`` messages that the session of ``scope`` no longer shows word for word.

        Raises:
            SessionNotFound, SessionAgentMismatch: the scope's caller has no such session with the scope's agent.
            StorageUnavailable: throttled or unreachable through all retries.
        """
        ...
