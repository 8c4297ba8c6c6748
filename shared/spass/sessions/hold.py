"""The hold of a session: a lease that lets at most one turn or job write to it, and the request of the turn that acquires it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from spass.core.errors import (
    CompactionInProgress,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    SessionArchived,
    SessionBusy,
    SpassError,
    StorageUnavailable,
)
from spass.core.ids import AgentName, OperatorId, SessionId, UserId, WorkspaceId, new_id
from spass.core.messages import Message
from spass.core.run_result import AgentRun, RunResult, decode_run_result
from spass.sessions.session import Hold, HoldKind, Session, decode_owned_session, decode_session
from spass.store import idempotency, keys
from spass.store.codec import encode
from spass.store.idempotency import IdempotentRequest, RequestHashes
from spass.store.leases import LEASE_SECONDS, RETRY_SECONDS
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, AnyOf, AtMost, Equals, Item, Update, Write

if TYPE_CHECKING:
    from spass.journal.head import StreamClaim


class SessionPointer(Protocol):
    """An item that points to a session: a client's name for it, or an operator. One turn uses an object of this class.

    ``session`` is the session to which the item pointed when it was last read or written. That session may have been archived or
    deleted since.
    """

    session: SessionId | None

    def point_to(self, session: Session) -> Write:
        """Return the write that lets the item point to a new session, for the transaction that creates it. Its condition fails
        unless the item still points to ``self.session``."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The session that a turn wants. Before the turn holds it, ``session`` is a guess: of an existing session's id, or of a new
    one's.

    ``template`` is the session to create, with a new id, or None if the turn continues a session by its id. If what ``pointer``
    points to exists, the turn continues that instead. ``imported`` opens the history of a new session.
    """

    session: SessionId
    template: Session | None = None
    pointer: SessionPointer | None = None
    imported: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A user's message to a session, as the turn ``id``, which owns the hold. The hold checks ``user`` and the agent's name
    against the session. The agent's model has the ``context_window``, in tokens.

    ``stream`` is the claim of a streamed turn, which ``message_id`` names. A chat has an ``opening``, which chooses another
    session if ``session`` cannot be continued. ``workspace`` is the one that the client names, if it does.

    A run of ``operator`` continues its session, whichever agent that is filed under. ``stream_namespace`` takes the place of the
    agent's name in the name of the stream.
    """

    session: SessionId
    user: UserId
    message: str
    run: AgentRun
    context_window: int
    idempotency: IdempotentRequest | None = None
    stream: "StreamClaim | None" = None
    message_id: str | None = None
    opening: Opening | None = None
    workspace: WorkspaceId | None = None
    operator: OperatorId | None = None
    stream_namespace: AgentName | None = None
    id: str = field(default_factory=lambda: new_id("turn"))

    @property
    def agent(self) -> AgentName:
        return AgentName(self.run.agent)

    def idempotency_at(self, session: SessionId) -> IdempotentRequest | None:
        """Return the request as a client repeats it to ``session``, the successor, after ``SessionArchived``. A request to an
        operator is repeated as it was."""
        if self.idempotency is None or self.operator is not None:
            return self.idempotency
        return self.idempotency.at(messages_path(self.agent, session))

    def hold(self, now: float, successor: SessionId | None = None) -> Hold:
        """Return the hold of the turn that starts ``now``, or of its ``successor`` after a compaction."""
        request = self.idempotency if successor is None else self.idempotency_at(successor)
        hashes = request.hashes if request is not None else None
        return new_hold(self.id, HoldKind.TURN, hashes, now, message_id=self.message_id, agent=self.stream_namespace)

    async def stored_result(self, store: TenantStore) -> RunResult | None:
        """Return the result that an earlier attempt of the request recorded, or None.

        Raises:
            IdempotencyKeyReused: the key was used with another body.
        """
        answer = await idempotency.read(store, self.idempotency) if self.idempotency is not None else None
        return decode_run_result(answer.body) if answer is not None else None


def messages_path(agent: AgentName, session: SessionId) -> str:
    """Return the path, from the API's root, to which the messages of a session are sent."""
    return f"/a1/agents/{agent}/sessions/{session}/messages"


def new_hold(
    owner: str,
    kind: HoldKind,
    request: RequestHashes | None,
    now: float,
    *,
    message_id: str | None = None,
    agent: AgentName | None = None,
) -> Hold:
    """Return the hold of the turn or job ``owner`` that starts ``now``. ``request`` is the request that started it.
    ``message_id`` and ``agent`` name the stream of a streamed turn."""
    key_hash, body_hash = (request.digest, request.body_hash) if request else (None, None)
    return Hold(owner, kind, int(now) + LEASE_SECONDS, key_hash, body_hash, message_id, agent)


def not_held_by_others(now: float, *owners: str) -> AnyOf:
    """Require that the session is free, expired, or held by one of ``owners``."""
    return AnyOf((Absent("hold"), AtMost("hold.expires_at", int(now)), *map(held_by, owners)))


def held_by(owner: str) -> Equals:
    """Require that ``owner`` still holds the session, even if the hold has expired."""
    return Equals("hold.owner", owner)


async def acquire_hold(
    store: TenantStore,
    session: SessionId,
    agent: AgentName | None,
    user: UserId,
    hold: Hold,
    now: float,
    *,
    previous_owner: str | None = None,
) -> Session:
    """Acquire the hold with one write and return the session. ``agent`` is None for any agent. Take the hold over from
    ``previous_owner``, the earlier attempt of the same stream, even if it has not expired.

    Raises:
        SessionNotFound, SessionAgentMismatch: the user has no such session with the agent.
        SessionArchived: the session was compacted; its successor continues it.
        SessionBusy, CompactionInProgress, IdempotencyInProgress, IdempotencyKeyReused: another request holds the session.
        StorageUnavailable: the outcome is unknown; the hold, if taken, expires.
    """
    is_owner = Equals("user", user) if agent is None else Equals("user", user) & Equals("agent", agent)
    own_attempts = [hold.owner] if previous_owner is None else [hold.owner, previous_owner]
    write = Update(
        keys.session_head(store.tenant, session),
        set={"hold": encode(hold)},
        when=is_owner & Absent("deleted_at") & Absent("archived_at") & not_held_by_others(now, *own_attempts),
    )
    try:
        head = await store.table.write(write)
    except ConditionFailed as failure:
        raise hold_error(decode_owned_session(failure.item, agent, user), now, hold) from None
    except StorageUnavailable:
        with suppress(StorageUnavailable):
            await release_hold(store, session, hold.owner)
        raise
    return decode_session(head or {})


async def renew_hold(store: TenantStore, session: SessionId, owner: str, now: float) -> None:
    """Extend the hold by a minute.

    Raises:
        ConditionFailed: the hold was lost.
        StorageUnavailable: the outcome is unknown.
    """
    write = Update(
        keys.session_head(store.tenant, session),
        set={"hold.expires_at": int(now) + LEASE_SECONDS},
        when=held_by(owner),
    )
    await store.table.write(write)


async def release_hold(store: TenantStore, session: SessionId, owner: str) -> None:
    """Release the hold of ``owner``, if any. Afterwards no write that requires ``held_by(owner)`` can take effect.

    Raises:
        StorageUnavailable: the hold may stay until it expires.
    """
    write = Update(keys.session_head(store.tenant, session), remove=("hold",), when=held_by(owner))
    with suppress(ConditionFailed):
        await store.table.write(write)


def hold_error(session: Session, now: float, wanted: Hold | None = None) -> SpassError:
    """Return why a request cannot hold the session. ``wanted`` is the hold that a turn has tried to acquire."""
    if session.archived_at is not None:
        return SessionArchived(
            "This session was compacted. Continue with its successor.",
            details={"successor_session_id": session.successor_session_id},
        )
    hold = session.hold
    if hold is None or not hold.live(now):
        return SessionBusy("Another request has just changed this session; try again.", retry_after=1)
    seconds = max(1, min(RETRY_SECONDS, hold.expires_at - int(now)))
    if hold.kind is HoldKind.JOB:
        return CompactionInProgress(
            "This session is being compacted; try again.", details={"job_id": hold.owner}, retry_after=seconds
        )
    if wanted is None or wanted.key_hash is None or hold.key_hash != wanted.key_hash:
        if hold.message_id is None:
            return SessionBusy("Another turn is running in this session; try again.", retry_after=seconds)
        other = {"agent": hold.agent} if hold.agent not in (None, session.agent) else {}
        return SessionBusy(
            "Another turn is running in this session. Try again, or follow or stop its stream, which details.message_id names.",
            details={"message_id": hold.message_id, **other},
            retry_after=seconds,
        )
    if hold.body_hash != wanted.body_hash:
        return IdempotencyKeyReused("This Idempotency-Key was used with another body; use a new key for a new request.")
    return IdempotencyInProgress("A request with this Idempotency-Key is still running.", retry_after=seconds)


def is_deleted(item: Item | None) -> bool:
    """Return whether the session of this head is deleted or never existed."""
    return item is None or "deleted_at" in item
