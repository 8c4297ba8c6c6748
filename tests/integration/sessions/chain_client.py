"""A client that follows redirects to successors, and helpers that read the history of a whole chain."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spass.core.errors import Conflict, SessionArchived, SpassError, StorageUnavailable
from spass.core.ids import SessionId
from spass.runs.run import RunAnswer
from spass.sessions.session import Session
from spass.store import keys
from spass.store.leases import LEASE_SECONDS
from tests.integration.sessions.conftest import AGENT, USER, idempotent, redirect

if TYPE_CHECKING:
    from tests.integration.sessions.conftest import SessionHarness


@dataclass(slots=True)
class Client:
    """A client that sends one request until it is answered. It obeys ``Retry-After`` and follows redirects."""

    harness: "SessionHarness"
    session: SessionId
    key: str
    message: str = "hello"

    async def answer(self) -> RunAnswer:
        """Send the request and its retries, each to the first session. Follow redirects without a delay."""
        for _ in range(LEASE_SECONDS):
            try:
                return await self.follow()
            except (Conflict, StorageUnavailable) as error:
                self.harness.now += retry_seconds(error)
        raise AssertionError(f"the request still fails after {LEASE_SECONDS} attempts")

    async def follow(self) -> RunAnswer:
        """Send the request once, and then to each session that it is redirected to."""
        harness, session, request = self.harness, self.session, idempotent(self.key, self.message)
        for _ in range(1000):
            try:
                return await harness.turn_of(session, self.message, request).answer()
            except SessionArchived as error:
                session = SessionId(str(error.details["successor_session_id"]))
                request = redirect(request, session)
        raise AssertionError("the chain has more than 1000 redirects")


def retry_seconds(error: SpassError) -> float:
    assert error.retry_after is not None, "the error must state a retry time"
    return error.retry_after


async def chain(harness: "SessionHarness", session: SessionId) -> list[Session]:
    """Return the session and its successors. Assert that the links in both directions agree."""
    members = [await harness.head(session)]
    while (successor := members[-1].successor_session_id) is not None:
        members.append(await harness.head(successor))
        assert members[-1].parent_session_id == members[-2].id
        assert members[-2].archived_at is not None
    listed_sessions = await harness.store.table.query(keys.user_sessions_partition(harness.store.tenant, USER, AGENT))
    for member in members:
        children = [listed["id"] for listed in listed_sessions if listed.get("parent_session_id") == member.id]
        assert children == ([member.successor_session_id] if member.successor_session_id else []), "exactly one successor"
    return members


async def visible_history(harness: "SessionHarness", members: list[Session]) -> list[str]:
    """Return the messages of the whole chain. Assert that each successor contains the kept messages unchanged."""
    visible: list[str] = []
    tail: list[str] = []
    for member in members:
        history = await harness.history(member.id)
        contents = [stored.message.content for stored in history]
        if member.parent_session_id is not None:
            assert contents[0].startswith(f"[compaction summary from session {member.parent_session_id}] ")
            assert contents[1 : len(tail) + 1] == tail
        own = history[1:] if member.parent_session_id is not None else history
        visible += [stored.message.content for stored in own if stored.seq < member.compacted_before or not member.archived_at]
        tail = contents[member.compacted_before - 1 :]
    return visible


def turn_texts(message: str) -> list[str]:
    """Return the contents of the four messages of a turn: question, tool call, tool result and answer."""
    return [message, "", '{"value":2}', f"answer to {message}"]
