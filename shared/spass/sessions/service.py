"""The sessions API of the routes. Each call acts for the tenant and user of the scope, with one agent."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spass.calls.scope import Scope
from spass.core.errors import (
    LimitExceeded,
    SessionArchived,
    SessionNotFound,
)
from spass.core.ids import AgentName, Operator, SessionId, WorkspaceId, id_pattern, new_id
from spass.core.messages import Message
from spass.core.paging import decode_cursor, fill_page
from spass.core.run_result import RunResult
from spass.core.tasks import run_in_worker_thread
from spass.core.time import Clock, timestamp
from spass.sessions.conversation import Conversation
from spass.sessions.deletion import delete_session
from spass.sessions.history import HistoryPage, read_history
from spass.sessions.hold import Opening, TurnRequest
from spass.sessions.opening import SessionOpener, import_messages, read_name, remove_refused
from spass.sessions.operators import OperatorOpening, read_pointer
from spass.sessions.session import CreateSession, Session, SessionView, decode_session, parse_session_id, read_session
from spass.store import keys
from spass.store.idempotency import Claim, StoredResponse, put_once
from spass.store.writes import ITEM_ABSENT, Put
from spass.tenancy.response_model import NextCursor, ResponseModel
from spass.tenancy.settings import Cascade

if TYPE_CHECKING:
    from spass.sessions.compaction.summary import Summarizer

_POSITION: Final = re.compile(id_pattern("ses"))


class SessionPage(ResponseModel):
    """A page of the user's sessions with an agent, newest first."""

    sessions: list[SessionView]
    next_cursor: NextCursor


class Sessions:
    """The sessions of all tenants. ``summarizer`` is called when a turn compacts. ``clock`` returns seconds since the epoch."""

    def __init__(self, cascade: Cascade, summarizer: "Callable[[], Summarizer]", clock: Clock = time.time) -> None:
        self._cascade = cascade
        self._summarizer = summarizer
        self._clock = clock

    async def create(self, scope: Scope, agent: AgentName, options: CreateSession, claim: Claim | None = None) -> Session:
        """Create a session. With a ``claim`` the same transaction stores the answer.

        Raises:
            LeaseLost: another attempt has taken the claim; nothing was created.
        """
        store, session = scope.store, await self._new(scope, agent, options)
        writes = [
            Put(keys.session_head(store.tenant, session.id), session.attributes(), ITEM_ABSENT),
            Put(keys.user_session(store.tenant, session.user, agent, session.id), session.entry()),
        ]
        await put_once(
            store, writes, token=session.id, claim=claim, response=StoredResponse(SessionView.of(session).to_dict(), {})
        )
        return session

    async def page(self, scope: Scope, agent: AgentName, cursor: str | None, limit: int) -> SessionPage:
        """Return at most ``limit`` of the user's sessions with the agent, from ``cursor`` on.

        Raises:
            InvalidRequest: the cursor does not belong to this list.
        """
        store, user = scope.store, scope.caller.require_user()
        cursor_scope = f"sessions|{store.tenant}|{user}|{agent}"
        last = SessionId(decode_cursor(cursor_scope, cursor, _POSITION)) if cursor is not None else None
        after = keys.user_session(store.tenant, user, agent, last).sk if last is not None else None
        pages = store.table.pages(
            keys.user_sessions_partition(store.tenant, user, agent),
            prefix=keys.USER_SESSION_PREFIX,
            after=after,
            size=limit + 1,
            newest_first=True,
        )
        views = ((str(item["id"]), SessionView.of(decode_session(item))) async for items in pages for item in items)
        sessions, next_cursor = await fill_page(cursor_scope, views, limit)
        return SessionPage(sessions=sessions, next_cursor=next_cursor)

    async def get(self, scope: Scope, agent: AgentName, session: SessionId) -> Session:
        """Return a session of the user with ``agent``.

        Raises:
            SessionNotFound: the session does not exist, was deleted or belongs to another user.
            SessionAgentMismatch: the session belongs to the user, but to another agent.
        """
        return await read_session(scope.store, session, agent, scope.caller.require_user())

    async def successor(self, scope: Scope, agent: AgentName, archived: SessionArchived) -> SessionId:
        """Return the id of the successor of an archived session.

        Raises:
            SessionNotFound: the successor has been deleted.
        """
        successor = SessionId(str(archived.details["successor_session_id"]))
        try:
            return (await self.get(scope, agent, successor)).id
        except SessionNotFound:
            message = "This session was compacted, and its successor has been deleted."
            raise SessionNotFound(message, details=archived.details) from None

    async def history(self, scope: Scope, agent: AgentName, session: SessionId, cursor: str | None, limit: int) -> HistoryPage:
        """Return at most ``limit`` messages of the session from ``cursor`` on, oldest first. Errors are those of ``get`` and of
        ``read_history``."""
        return await read_history(scope.store, await self.get(scope, agent, session), cursor, limit)

    async def delete(self, scope: Scope, agent: AgentName, session: SessionId) -> None:
        """Delete the session and all its messages. Errors are those of ``delete_session``."""
        await delete_session(scope.store, session, agent, scope.caller.require_user(), self._clock())

    def view(self, session: Session) -> SessionView:
        """Return the session as its user sees it, with its active turn."""
        return SessionView.of(session, self._clock())

    async def open(
        self,
        scope: Scope,
        agent: AgentName,
        wanted: str | None,
        imported: Sequence[Message],
        workspace: WorkspaceId | None = None,
        title: str | None = None,
    ) -> Opening:
        """Return how a chat opens its session. ``wanted`` is the id of a session, a name that the client chooses, or None for a
        new session. ``imported`` are the entries before the chat's message; only a new session stores them. A new session gets
        the ``workspace`` and the ``title``, or its name as title.

        Raises:
            SessionNotFound: ``wanted`` begins like an id, but is none.
            InvalidRequest, InputRefused: ``wanted`` is neither, or the entries cannot be stored (``import_messages``).
        """
        session = parse_session_id(wanted) if wanted is not None else None
        if session is not None:
            return Opening(session)
        characters = sum(len(entry.content) for entry in imported)
        messages, name = await run_in_worker_thread(characters, import_messages, imported), wanted
        template, pointer = await asyncio.gather(
            self._new(scope, agent, CreateSession(title=title or name, workspace=workspace)),
            read_name(scope.store, scope.caller.require_user(), agent, name),
        )
        named = pointer.session if pointer is not None else None
        return Opening(named or template.id, replace(template, name=name), pointer, messages)

    async def open_operator(
        self, scope: Scope, agent: AgentName, operator: Operator, workspace: WorkspaceId | None = None
    ) -> OperatorOpening:
        """Return how a run of ``operator`` opens its session. A new session gets ``agent`` and ``workspace``."""
        template, pointer = await asyncio.gather(
            self._new(scope, agent, CreateSession(workspace=workspace)), read_pointer(scope.store, operator)
        )
        template = replace(template, user=operator.user, operator=operator.id)
        return OperatorOpening(Opening(pointer.session or template.id, template, pointer), pointer)

    @asynccontextmanager
    async def hold(self, scope: Scope, request: TurnRequest) -> AsyncIterator[Conversation | RunResult]:
        """Hold the session of a turn while the body runs, or give the result that an earlier attempt of the request recorded.
        ``scope`` is the agent's, in the session of the turn.

        Raises:
            SpassError: the session cannot be held now, or the turn may not continue it.
        """
        opened = await SessionOpener(scope.store, request, self._clock).open()
        if isinstance(opened, RunResult):
            yield opened
            return
        scope.continue_in(opened.session.id)
        conversation = Conversation(scope, request, opened, self._summarizer, self._clock)
        try:
            conversation.check()
            yield conversation
        except LimitExceeded:
            if not scope.tally.has_acted:
                await remove_refused(scope.store, opened, request.id)
            raise
        finally:
            await conversation.release()

    async def _new(self, scope: Scope, agent: AgentName, options: CreateSession) -> Session:
        settings = (await self._cascade.effective(scope.store, bypass_cache=scope.bypass_cache)).config
        at = timestamp(self._clock())
        session = Session(
            SessionId(new_id("ses")),
            agent,
            scope.caller.require_user(),
            options.title,
            at,
            at,
            settings.compact_strategy,
            settings.compact_keep_last_n,
            settings.compact_observation_mask,
        )
        return replace(session, **options.model_dump(exclude_none=True))
