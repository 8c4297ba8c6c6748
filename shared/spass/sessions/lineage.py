"""Read a session's chain: its ancestors, its successors, and the summaries between them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import WithJsonSchema

from spass.calls.scope import Scope
from spass.core.ids import AgentName, SessionId, UserId
from spass.core.paging import PageSizeLimit
from spass.sessions.compaction.plan import SummaryRecord, read_summary
from spass.sessions.session import Session, SessionView, decode_session, read_session
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.tenancy.response_model import LEAVE_OUT_IF_EMPTY, Count, DateTime, ResponseModel, SessionIdText, SummaryIdText

_SUMMARIES_PER_READ: Final = 16  # a summary may be as large as an item


class DeletedSession(ResponseModel):
    """A deleted session, of which only the id remains."""

    id: SessionIdText
    deleted: Literal[True] = True


@dataclass(frozen=True, slots=True)
class LineagePath:
    """A chain in one direction, nearest member first. ``is_complete``: it reaches the end of the chain."""

    members: Sequence[Session | DeletedSession]
    is_complete: bool

    @property
    def existing_sessions(self) -> list[Session]:
        return [member for member in self.members if isinstance(member, Session)]


class SummaryView(ResponseModel):
    """The summary that a session begins with: of the messages `first_seq` to `last_seq` of the source, both included."""

    id: SummaryIdText
    source_session_id: SessionIdText
    successor_session_id: SessionIdText
    text: str
    model: str
    created_at: DateTime
    first_seq: Count
    last_seq: Count

    @classmethod
    def of(cls, record: SummaryRecord) -> "SummaryView":
        return cls(
            id=record.id,
            source_session_id=record.source,
            successor_session_id=record.successor,
            text=record.text,
            model=record.model,
            created_at=record.created_at,
            first_seq=record.first_seq,
            last_seq=record.last_seq,
        )


class Chain(ResponseModel):
    """A session's chain, as much of it as fits into one answer. `summaries` are those that its members begin with, oldest
    first. If not all fit, the newest are returned, which contain the older ones."""

    session_id: SessionIdText
    backward: list[SessionView | DeletedSession]
    forward: list[SessionView | DeletedSession]
    summaries: list[SummaryView]
    truncated: Annotated[
        bool,
        LEAVE_OUT_IF_EMPTY,
        WithJsonSchema({"type": "boolean", "const": True, "description": "The chain is longer."}),
    ] = False


async def read_chain(scope: Scope, agent: AgentName, session: SessionId, *, max_members: int = 100) -> Chain:
    """Return the chain of the user's session, which may be archived: at most ``max_members`` in each direction.

    Raises:
        SessionNotFound: the session does not exist, was deleted or belongs to another user.
        SessionAgentMismatch: it belongs to the user, but to another agent.
    """
    store, user = scope.store, scope.caller.require_user()
    requested = await read_session(store, session, agent, user)
    backward, forward = await asyncio.gather(
        ancestors(store, requested, max_members),
        _follow(store, user, requested.successor_session_id, lambda member: member.successor_session_id, max_members),
    )
    newest_first = [*reversed(forward.existing_sessions), requested, *backward.existing_sessions]
    before, after = _member_views(backward), _member_views(forward)
    summaries, all_fit = await _summaries(store, newest_first, members=[*before, *after])
    return Chain(
        session_id=requested.id,
        backward=before,
        forward=after,
        summaries=summaries[::-1],
        truncated=not (backward.is_complete and forward.is_complete and all_fit),
    )


def _member_views(path: LineagePath) -> list[SessionView | DeletedSession]:
    return [SessionView.of(member) if isinstance(member, Session) else member for member in path.members]


async def ancestors(store: TenantStore, session: Session, limit: int) -> LineagePath:
    """Return the sessions that ``session`` was compacted from, at most ``limit``, nearest first."""
    return await _follow(store, session.user, session.parent_session_id, lambda member: member.parent_session_id, limit)


async def _follow(
    store: TenantStore, user: UserId, first: SessionId | None, next_id: Callable[[Session], SessionId | None], limit: int
) -> LineagePath:
    """Follow the chain from ``first`` on, for at most ``limit`` members. ``next_id`` returns the link to follow. The head
    of a deleted member still has its links; the chain ends where a head is missing."""
    members: list[Session | DeletedSession] = []
    current = first
    while current is not None and len(members) < limit:
        item = await store.table.get(keys.session_head(store.tenant, current))
        head = decode_session(item) if item is not None else None
        if head is None or head.user != user:
            return LineagePath([*members, DeletedSession(id=current)], is_complete=True)
        members.append(head if head.deleted_at is None else DeletedSession(id=current))
        current = next_id(head)
    return LineagePath(members, is_complete=current is None)


async def _summaries(
    store: TenantStore, newest_first: Sequence[Session], *, members: Sequence[ResponseModel]
) -> tuple[list[SummaryView], bool]:
    """Return the summaries that these sessions start with, as many as fit into an answer with its ``members``. Also return
    whether all of them fit."""
    summary_ids = [(session.id, session.summary_id) for session in newest_first if session.summary_id is not None]
    room = PageSizeLimit()
    room.add(b",".join(member.to_json() for member in members))
    views: list[SummaryView] = []
    for start in range(0, len(summary_ids), _SUMMARIES_PER_READ):
        batch = summary_ids[start : start + _SUMMARIES_PER_READ]
        for record in await asyncio.gather(*(read_summary(store, session, summary) for session, summary in batch)):
            if record is None:  # its session was deleted during the read
                continue
            summary = SummaryView.of(record)
            if not room.add(summary.to_json()):
                return views, False
            views.append(summary)
    return views, True
