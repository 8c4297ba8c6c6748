"""Open the session of a chat: continue one, or create it with its imported history and the turn's hold in one transaction.

A new attempt of a stream continues the session of the attempt before, which may exist or not: so it tries to create it first.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from spass.calls.defence import MAX_CHARACTERS, is_blank
from spass.core.effects import user
from spass.core.errors import (
    CompactionInProgress,
    IdempotencyInProgress,
    InputRefused,
    InvalidRequest,
    SessionArchived,
    SessionBusy,
    SessionNotFound,
    StorageUnavailable,
)
from spass.core.ids import AgentName, MessageId, SessionId, UserId, new_id, random_suffix
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.run_result import RunResult
from spass.core.time import Clock, Timestamp
from spass.sessions.hold import Opening, SessionPointer, TurnRequest, acquire_hold, held_by
from spass.sessions.record import StoredMessage, TurnRecord, overflow_key, store_body, stored_overflow_key
from spass.sessions.session import Session, decode_session, name_removal, name_write, read_chain_end
from spass.store import keys
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Absent, Delete, Equals, Put, Value, Write

# After one of these errors the turn may have been committed already, by an earlier attempt of the same request.
_POSSIBLY_COMMITTED: Final = (SessionBusy, CompactionInProgress, IdempotencyInProgress, SessionArchived)
_ATTEMPTS: Final = 8
"""Each attempt meets another request that creates, compacts or deletes the session at the same moment."""


@dataclass(slots=True)
class NamePointer:
    """A client's ``name`` for a session of a user and an agent, as a ``SessionPointer``."""

    store: TenantStore
    name: str
    session: SessionId | None

    def point_to(self, session: Session) -> Put:
        free = ITEM_ABSENT if self.session is None else ITEM_ABSENT | Equals("session", self.session)
        return name_write(self.store, session, self.name, free)


async def read_name(store: TenantStore, user: UserId, agent: AgentName, name: str | None) -> NamePointer | None:
    """Return the pointer of ``name``, or None if that is None."""
    if name is None:
        return None
    item = await store.table.get(keys.session_name(store.tenant, user, agent, name))
    return NamePointer(store, name, SessionId(str(item["session"])) if item is not None else None)


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session that the turn holds. ``turns`` is the history of a new session, and None if it must be read."""

    session: Session
    turns: Sequence[TurnRecord] | None = None


async def remove_refused(store: TenantStore, opened: OpenedSession, owner: str) -> None:
    """Remove the session that the turn ``owner`` has created, if the turn is refused before it has acted (``CostTally``). Do
    nothing if the turn continued an existing session or that of an operator. If the table does not answer, the session stays."""
    session = opened.session
    if opened.turns is None or session.operator is not None:
        return
    tenant, is_ours = store.tenant, held_by(owner) & Absent("deleted_at") & Absent("archived_at")
    writes: list[Write] = [
        Delete(keys.session_head(tenant, session.id), is_ours),
        Delete(keys.user_session(tenant, session.user, session.agent, session.id)),
        *(Delete(keys.session_turn(tenant, session.id, 1)) for _ in opened.turns),
    ]
    if session.name is not None:
        writes.append(name_removal(store, session, session.name))
    with suppress(TransactionFailed, StorageUnavailable):
        await store.table.transact(writes, token=random_suffix())
        await store.objects.delete([overflow_key(session.id, turn.id) for turn in opened.turns])


class SessionOpener:
    """Open the session of one turn. The stream's head names a session before the turn holds it."""

    def __init__(self, store: TenantStore, request: TurnRequest, clock: Clock) -> None:
        self._store = store
        self._request = request
        self._hold = request.hold(clock())
        self._clock = clock
        self._claimed = request.stream.head.session if request.stream is not None else None

    async def open(self) -> OpenedSession | RunResult:
        """Hold the session of the turn, or return the result if an earlier attempt of the request was committed.

        Raises:
            SessionNotFound, SessionAgentMismatch: the user has no such session with the agent, or its successor is deleted.
            SessionBusy, CompactionInProgress: another request holds the session.
            StorageUnavailable: the outcome is unknown; the hold, if taken, expires.
        """
        request = self._request
        # Do not create a session for a turn that was committed, if the operator's session was deleted since.
        if request.operator is not None and (result := await request.stored_result(self._store)) is not None:
            return result
        try:
            if request.opening is None:
                return OpenedSession(await self._acquire(request.session))
            return await self._open(request.opening)
        except _POSSIBLY_COMMITTED:
            if (result := await request.stored_result(self._store)) is not None:
                return result
            raise

    async def _open(self, opening: Opening) -> OpenedSession:
        template, pointer = opening.template, opening.pointer
        if template is None:
            return await self._continue_from(opening.session)
        # The id that an earlier attempt chose is used again, so that no second session is created. A pointer prevents that, too,
        # and then the id may be that of a session that was deleted since: a late write of its deletion would reach the new one.
        candidate, new = (pointer.session, template.id) if pointer is not None else (None, self._claimed or template.id)
        for _ in range(_ATTEMPTS):
            if candidate is not None:
                with suppress(SessionNotFound):
                    return await self._continue_from(candidate, follow_deleted=True)
            created = await self._create(replace(template, id=new), pointer, opening.imported)
            if isinstance(created, OpenedSession):
                return created
            candidate, new = created, SessionId(new_id("ses"))
        raise SessionBusy("Other requests keep changing this session; try again.", retry_after=1)

    async def _acquire(self, session: SessionId) -> Session:
        """Hold ``session`` itself. Errors are those of ``acquire_hold``."""
        await self._use(session)
        request, stream = self._request, self._request.stream
        agent = request.agent if request.operator is None else None
        previous_owner = stream.previous_owner if stream is not None else None
        return await acquire_hold(
            self._store, session, agent, request.user, self._hold, self._clock(), previous_owner=previous_owner
        )

    async def _continue_from(self, session: SessionId, *, follow_deleted: bool = False) -> OpenedSession:
        """Hold ``session``, or the newest session of its chain. With ``follow_deleted``, ``session`` itself may be a deleted
        member of the chain."""
        first = session
        for _ in range(_ATTEMPTS):
            try:
                return OpenedSession(await self._acquire(session))
            except SessionArchived as archived:
                link: SessionId | None = SessionId(str(archived.details["successor_session_id"]))
            except SessionNotFound:
                if session == first and not follow_deleted:
                    raise
                link = session
            newest = await self._newest(link)
            if newest is None:
                raise SessionNotFound("This session was compacted, and its successor has been deleted.")
            session = newest
        raise SessionBusy("Other requests keep compacting this session; try again.", retry_after=1)

    async def _newest(self, session: SessionId | None) -> SessionId | None:
        """Return the newest session of the chain that continues with ``session``; None if it is deleted."""
        head = (await read_chain_end(self._store, session)).head if session is not None else None
        return head.id if head is not None and head.user == self._request.user and head.deleted_at is None else None

    async def _create(
        self, template: Session, pointer: SessionPointer | None, imported: Sequence[Message]
    ) -> OpenedSession | SessionId | None:
        """Create the session ``template`` with its first turn and our hold, unless one exists. Then return the id of that one, or
        None if the item of ``pointer`` is gone.

        Raises:
            StorageUnavailable: the session was not created, or the outcome is unknown.
        """
        await self._use(template.id)
        first = import_turn(imported, template.created_at) if imported else None
        body = await store_body(self._store, template.id, first) if first is not None else None
        session = replace(template, next_seq=first.next_seq if first is not None else 1, hold=self._hold)
        opened = OpenedSession(session, (first,) if first is not None else ())
        writes = self._writes(session, body)
        if pointer is not None:
            writes.append(pointer.point_to(session))
        token = random_suffix()
        try:
            await self._store.table.transact(writes, token=token)
        except TransactionFailed as failure:
            if body is not None and (key := stored_overflow_key(dict(body))):
                with suppress(StorageUnavailable):
                    await self._store.objects.delete([key])
            if pointer is None or len(writes) - 1 not in failure.failures:
                return session.id
            item = failure.failures[len(writes) - 1]
            pointer.session = SessionId(str(item["session"])) if item is not None else None
            return pointer.session
        except StorageUnavailable:
            if not self._is_ours(await self._store.table.get(keys.session_head(self._store.tenant, session.id))):
                raise
        if pointer is not None:
            pointer.session = session.id
        return opened

    def _writes(self, session: Session, body: Mapping[str, Value] | None) -> list[Write]:
        tenant = self._store.tenant
        writes: list[Write] = [
            Put(keys.session_head(tenant, session.id), session.attributes(), ITEM_ABSENT),
            Put(keys.user_session(tenant, session.user, session.agent, session.id), session.entry()),
        ]
        if body is not None:
            writes.append(Put(keys.session_turn(tenant, session.id, 1), body, ITEM_ABSENT))
        return writes

    def _is_ours(self, head: Mapping[str, Value] | None) -> bool:
        hold = decode_session(dict(head)).hold if head is not None else None
        return hold is not None and hold.owner == self._hold.owner

    async def _use(self, session: SessionId) -> None:
        """Let the stream's head name ``session``, if the turn has a stream. Call this before the session is created or held.

        Raises:
            LeaseLost: another attempt owns the stream, or may own it.
        """
        stream = self._request.stream
        if stream is None:
            return
        if session != self._claimed:
            await stream.use_session(session)
            self._claimed = session
        stream.check_lease(self._clock())


def import_messages(entries: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages that a new session stores for ``entries``, in order.

    A tool's answer has no recorded call, and providers refuse an answer without its call. So it becomes a user message that
    is marked as data: the input defence shows it to a model as looked-up text and never as the user's words. Entries without a
    visible character are left out, because no model would accept them.

    Raises:
        InvalidRequest: an entry has another role than user, assistant and tool.
        InputRefused: an entry is longer than a model's input may be.
    """
    return tuple(_import_all(entries))


def import_turn(messages: Sequence[Message], at: Timestamp) -> TurnRecord:
    """Return imported messages (at least one) as the first turn of a session."""
    stored = (StoredMessage(MessageId(new_id("msg")), seq, at, message) for seq, message in enumerate(messages, 1))
    return TurnRecord(new_id("turn"), tuple(stored), TokenUsage(), 0, FinishReason.STOP)


def _import_all(entries: Sequence[Message]) -> Iterator[Message]:
    for entry in entries:
        if entry.role is Role.SYSTEM:
            raise InvalidRequest("A chat has no entries of the role 'system'.", param="messages")
        if len(entry.content) > MAX_CHARACTERS:
            raise InputRefused(
                f"A message has more than {MAX_CHARACTERS} characters.", param="messages", details={"reason": "message_too_long"}
            )
        if is_blank(entry.content):
            continue
        if entry.role is Role.TOOL:
            call = f"the call {entry.tool_call_id}" if entry.tool_call_id else "a call"
            yield user(f"Result of {call}: {entry.content}", data=True)
        else:
            yield Message(entry.role, entry.content)
