"""Holding a session: at most one turn or job at a time may go on to write to it."""

from contextlib import suppress
from typing import Final

from spass.aws import keys
from spass.aws.again import again
from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.idempotency import IdempotentRequest
from spass.aws.leases import LEASE_SECONDS, RETRY_SECONDS
from spass.aws.table import Condition, ConditionFailed, Update
from spass.core.errors import (
    CompactionInProgress,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    SessionArchived,
    SessionBusy,
    SpassError,
    StorageUnavailable,
)
from spass.core.ids import AgentName, SessionId, UserId
from spass.sessions.session import Hold, HoldKind, Session, owned, session_of

_NAMES: Final = {"#hold": "hold", "#owner": "owner"}


def turn_hold(turn_id: str, request: IdempotentRequest | None, now: float) -> Hold:
    """A turn's hold, from ``now`` on."""
    key_hash, body_hash = (request.digest, request.body_hash) if request else (None, None)
    return Hold(turn_id, HoldKind.TURN, int(now) + LEASE_SECONDS, key_hash, body_hash)


def job_hold(job_id: str, key_hash: str | None, body_hash: str | None, now: float) -> Hold:
    """A job's hold, from ``now`` on."""
    return Hold(job_id, HoldKind.JOB, int(now) + LEASE_SECONDS, key_hash, body_hash)


def free(now: float, owner: str = "") -> Condition:
    """Nobody but ``owner`` holds the session."""
    return Condition(
        "(attribute_not_exists(#hold) OR #hold.expires_at <= :now OR #hold.#owner = :owner)",
        _NAMES,
        {":now": int(now), ":owner": owner},
    )


def held_by(owner: str) -> Condition:
    """``owner`` holds the session still, whatever the clock says."""
    return Condition("#hold.#owner = :owner", _NAMES, {":owner": owner})


async def take(store: TenantStore, session: SessionId, agent: AgentName, user: UserId, hold: Hold, now: float) -> Session:
    """Hold the session, in one write; the session as it then is.

    Raises:
        SessionNotFound, SessionAgentMismatch: as ``owned``.
        SessionArchived: it went on as another one.
        SessionBusy, CompactionInProgress, IdempotencyInProgress, IdempotencyKeyReused: somebody else holds it.
        StorageUnavailable: we cannot know; what we may hold falls free by itself.
    """
    vacant = free(now, hold.owner)
    write = Update(
        keys.session_head(store.tenant, session),
        "SET #hold = :hold",
        values={":hold": hold.attributes()},
        condition=Condition(
            "#user = :user AND #agent = :agent AND attribute_not_exists(deleted_at) AND attribute_not_exists(archived_at) AND "
            + vacant.expression,
            {**vacant.names, "#user": "user", "#agent": "agent"},
            {**vacant.values, ":user": user, ":agent": agent},
        ),
    )
    try:
        head = await again(lambda: store.table.write(write))
    except ConditionFailed as failure:
        raise refusal(owned(failure.item, agent, user), hold.key_hash, hold.body_hash, now) from None
    except StorageUnavailable:
        with suppress(StorageUnavailable):
            await release(store, session, hold.owner)
        raise
    return session_of(head or {})


async def renew(store: TenantStore, session: SessionId, owner: str, now: float) -> None:
    """Hold on for another minute.

    Raises:
        ConditionFailed: the hold was lost.
        StorageUnavailable: we cannot know.
    """
    mine = held_by(owner)
    write = Update(
        keys.session_head(store.tenant, session),
        "SET #hold.expires_at = :until",
        values={":until": int(now) + LEASE_SECONDS},
        condition=mine,
    )
    await again(lambda: store.table.write(write))


async def release(store: TenantStore, session: SessionId, owner: str) -> None:
    """Let go of what ``owner`` may hold. Afterwards nothing that asks for ``held_by(owner)`` can take effect any more.

    Raises:
        StorageUnavailable: it may be held until it expires.
    """
    write = Update(keys.session_head(store.tenant, session), "REMOVE #hold", condition=held_by(owner))
    with suppress(ConditionFailed):
        await store.table.write(write)


def refusal(session: Session, key_hash: str | None, body_hash: str | None, now: float) -> SpassError:
    """Why the session cannot be held, seen by a request with this Idempotency-Key."""
    if session.archived_at is not None:
        return SessionArchived(
            "This session was compacted and goes on as its successor.",
            details={"successor_session_id": session.successor_session_id},
        )
    hold = session.hold
    if hold is None:
        return SessionBusy("Another request has just changed this session; try again.", retry_after=1)
    rest = max(1, min(RETRY_SECONDS, hold.expires_at - int(now)))
    if hold.kind is HoldKind.JOB:
        return CompactionInProgress(
            "This session is being compacted; try again.", details={"job_id": hold.owner}, retry_after=rest
        )
    if key_hash is None or hold.key_hash != key_hash:
        return SessionBusy("Another turn is running in this session; try again.", retry_after=rest)
    if hold.body_hash != body_hash:
        return IdempotencyKeyReused("This Idempotency-Key was used with another body; use a new key for a new request.")
    return IdempotencyInProgress("A request with this Idempotency-Key is still running.", retry_after=rest)


def gone(item: Item | None) -> bool:
    """Whether this head's session is deleted or was never there."""
    return item is None or "deleted_at" in item
