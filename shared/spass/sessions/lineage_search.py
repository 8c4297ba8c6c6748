"""Search the compacted messages of a session and of its ancestors."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

from spass.calls.scope import Scope
from spass.core.bm25 import Ranking, excerpt
from spass.core.errors import SessionNotFound
from spass.core.messages import Message, Role
from spass.core.time import Deadline
from spass.sessions.lineage import ancestors
from spass.sessions.record import StoredMessage, TurnRecord, load_turns
from spass.sessions.session import Session, read_session
from spass.store.bucket import ObjectMissing
from spass.store.tenant_store import TenantStore
from spass.tools.base import arguments_for_display
from spass.tools.builtin.lineage_search import LINEAGE_SEARCH, LineageHit, LineageSearchResult

_EXCERPT_CHARACTERS: Final = 1200
_TURNS_PER_READ: Final = 8  # a turn may be megabytes


@dataclass(frozen=True, slots=True)
class _Match:
    """A message to rank. ``distance`` is the number of compactions since its session was live."""

    session: Session
    distance: int
    stored: StoredMessage
    text: str

    @property
    def age(self) -> tuple[str, int, int]:
        """Return a sort key: greater for newer messages."""
        return self.stored.created_at, -self.distance, self.stored.seq


@dataclass(slots=True)
class _SearchBudget:
    """The time and the number of characters that a search may still use."""

    deadline: Deadline
    characters: int

    @property
    def is_exhausted(self) -> bool:
        return self.characters <= 0 or not self.deadline.remaining()


@dataclass(frozen=True, slots=True)
class SessionLineageSearcher:
    """The searcher behind the tool ``lineage_search``. Until it reaches a limit, it reads the nearest ancestor first, and each
    session from its oldest message on."""

    max_ancestors: int = 50
    max_characters: int = 16 * 2**20
    max_seconds: float = 10.0

    async def search(self, scope: Scope, query: str, limit: int) -> LineageSearchResult:
        """Search as ``LineageSearcher.search`` describes. Of equal scores, the newest message comes first. Skip the results of
        earlier searches: the messages that they quote are searched themselves."""
        current = scope.current_session
        if current is None or scope.agent is None:
            raise SessionNotFound("This request has no session.")
        agent = scope.agent if scope.agent != current.agent else None  # the agent of the turn may search its session
        session = await read_session(scope.store, current.id, agent, scope.caller.require_user())
        path = await ancestors(scope.store, session, self.max_ancestors)
        ranking = Ranking[_Match](query)
        budget = _SearchBudget(Deadline.after(self.max_seconds), self.max_characters)
        is_complete = path.is_complete
        for distance, member in enumerate([session, *path.existing_sessions]):
            is_complete &= await _search_session(scope.store, member, distance, ranking, budget)
        weights = ranking.weights()
        best = sorted(ranking.scored(), key=lambda scored_item: (scored_item.score, scored_item.item.age), reverse=True)[:limit]
        return LineageSearchResult(
            tuple(
                LineageHit(
                    match.session.id,
                    match.stored.seq,
                    match.stored.message.role,
                    excerpt(match.text, weights, _EXCERPT_CHARACTERS),
                    match.stored.created_at,
                    score,
                )
                for match, score in best
            ),
            ranking.searched,
            truncated=not is_complete,
        )


async def _search_session(
    store: TenantStore, session: Session, distance: int, ranking: Ranking[_Match], budget: _SearchBudget
) -> bool:
    """Add the compacted messages of one session. Return whether all of them were read."""
    if session.compacted_before == 1:
        return True
    try:
        async for turn in _compacted_turns(store, session):
            if budget.is_exhausted:
                return False
            for stored in _own_messages(session, turn):
                text = _text(stored.message)
                budget.characters -= len(text)
                ranking.add(_Match(session, distance, stored, text), text)
            await asyncio.sleep(0)  # counting megabytes of words takes a second; let other requests run
    except ObjectMissing:  # it is being deleted
        return False
    return True


async def _compacted_turns(store: TenantStore, session: Session) -> AsyncIterator[TurnRecord]:
    """Yield the turns with compacted messages, oldest first."""
    seq = 1
    while seq < session.compacted_before:
        turns = await load_turns(store, session.id, seq, limit=_TURNS_PER_READ)
        if not turns:
            return
        for turn in turns:
            yield turn
        seq = turns[-1].next_seq


def _own_messages(session: Session, turn: TurnRecord) -> Iterator[StoredMessage]:
    """Yield the compacted messages of a turn, without the session's first summary and the results of earlier searches."""
    tool_names: dict[str, str] = {}
    for stored in turn.messages:
        message = stored.message
        tool_names |= {call.id: call.name for call in message.tool_calls}
        is_search_result = message.role is Role.TOOL and tool_names.get(message.tool_call_id or "") == LINEAGE_SEARCH
        is_summary = stored.seq == 1 and session.parent_session_id is not None
        if stored.seq < session.compacted_before and not is_search_result and not is_summary:
            yield stored


def _text(message: Message) -> str:
    """Return the text of a message and of its tool calls."""
    calls = [
        f"{call.name} {json.dumps(arguments_for_display(call.arguments), ensure_ascii=False)}"
        for call in message.tool_calls
        if call.name != LINEAGE_SEARCH
    ]
    return "\n".join(filter(None, [message.content, *calls]))
