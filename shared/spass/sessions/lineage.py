"""A session's chain: what it was compacted from, what it went on as, and the summaries in between."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.calls.scope import Scope
from spass.core.ids import AgentName, SessionId, UserId
from spass.core.messages import Json
from spass.core.page_size import PageSizeLimit
from spass.sessions.compaction.summary_store import read_summary
from spass.sessions.compaction.types import SummaryRecord
from spass.sessions.session import Session, decode_owned_session, decode_session, require_user

MAX_MEMBERS: Final = 100
"""Of a chain, each way from the session asked for."""

_SUMMARIES_AT_ONCE: Final = 16  # a summary may be as large as an item


@dataclass(frozen=True, slots=True)
class Member:
    """A place in a chain. ``session`` is None if it was deleted."""

    id: SessionId
    session: Session | None

    def wire(self) -> Json:
        return self.session.wire() if self.session is not None else {"id": self.id, "deleted": True}


@dataclass(frozen=True, slots=True)
class LineagePath:
    """A chain followed one way, the nearest member first. ``whole``: to its end."""

    members: tuple[Member, ...]
    whole: bool

    @property
    def live_sessions(self) -> Sequence[Session]:
        return [member.session for member in self.members if member.session is not None]


@dataclass(frozen=True, slots=True)
class Chain:
    """All of a chain that one answer holds. ``summaries`` are those that its living members begin with, oldest first; where there
    is no room for all, the newest, into which the older ones went."""

    session: Session
    backward: LineagePath
    forward: LineagePath
    summaries: tuple[SummaryRecord, ...]
    truncated: bool

    def wire(self) -> dict[str, Json]:
        """The lineage as a client sees it."""
        shown: dict[str, Json] = {
            "session_id": self.session.id,
            "backward": [member.wire() for member in self.backward.members],
            "forward": [member.wire() for member in self.forward.members],
            "summaries": [summary.wire() for summary in self.summaries],
        }
        return shown | {"truncated": True} if self.truncated else shown


class Lineage:
    """The chains of all tenants."""

    async def chain(self, scope: Scope, agent: AgentName, session: SessionId) -> Chain:
        """The chain of the user's session, which may be archived.

        Raises:
            SessionNotFound: absent, deleted or another user's.
            SessionAgentMismatch: it is the user's, with another agent.
            StorageUnavailable: throttled or unreachable through all retries.
        """
        store, user = scope.store, require_user(scope)
        asked = decode_owned_session(await store.table.get(keys.session_head(store.tenant, session)), agent, user)
        backward, forward = await asyncio.gather(
            ancestors(store, asked, MAX_MEMBERS), _follow(store, user, asked.successor_session_id, _next, MAX_MEMBERS)
        )
        members = [member.wire() for way in (backward, forward) for member in way.members]
        newest_first = [*reversed(forward.live_sessions), asked, *backward.live_sessions]
        summaries, all_fit = await _summaries(store, newest_first, beside=members)
        whole = backward.whole and forward.whole and all_fit
        return Chain(asked, backward, forward, tuple(reversed(summaries)), truncated=not whole)


async def ancestors(store: TenantStore, session: Session, most: int) -> LineagePath:
    """What ``session`` was compacted from, and that from, at most ``most`` members back."""
    return await _follow(store, session.user, session.parent_session_id, _previous, most)


def _next(session: Session) -> SessionId | None:
    return session.successor_session_id


def _previous(session: Session) -> SessionId | None:
    return session.parent_session_id


async def _follow(
    store: TenantStore, user: UserId, first: SessionId | None, onward: Callable[[Session], SessionId | None], most: int
) -> LineagePath:
    """The chain from ``first`` on. What is left of a deleted member still says how it goes on; where nothing is left, it ends."""
    members: list[Member] = []
    at = first
    while at is not None and len(members) < most:
        item = await store.table.get(keys.session_head(store.tenant, at))
        head = decode_session(item) if item is not None else None
        if head is None or head.user != user:
            return LineagePath((*members, Member(at, None)), whole=True)
        members.append(Member(at, head if head.deleted_at is None else None))
        at = onward(head)
    return LineagePath(tuple(members), whole=at is None)


async def _summaries(
    store: TenantStore, newest_first: Sequence[Session], *, beside: Sequence[Json]
) -> tuple[list[SummaryRecord], bool]:
    """The summaries that these sessions begin with, as many as fit into an answer ``beside`` its members; whether that is all."""
    begun = [(session.id, session.summary_id) for session in newest_first if session.summary_id is not None]
    room = PageSizeLimit()
    room.takes(_json_size(beside))
    kept: list[SummaryRecord] = []
    for start in range(0, len(begun), _SUMMARIES_AT_ONCE):
        some = begun[start : start + _SUMMARIES_AT_ONCE]
        for record in await asyncio.gather(*(read_summary(store, session, summary) for session, summary in some)):
            if record is None:  # its session was deleted as we read
                continue
            if not room.takes(_json_size(record.wire())):
                return kept, False
            kept.append(record)
    return kept, True


def _json_size(shown: Json) -> bytes:
    return json.dumps(shown, ensure_ascii=False).encode("utf-8", "replace")
