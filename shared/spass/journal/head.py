"""The head of a stream: the idempotency record of its request, and the lease of the attempt that runs it.

A request *claims* the head with one conditional write. The attempt that owns the claim renews its lease; if it dies, the lease
expires and the next request runs another attempt. Every write of an owner requires that it still owns the head and that its
attempt is running. ``owner`` is the id of a turn, which no other attempt ever has.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from spass.core.errors import IdempotencyKeyReused, StorageUnavailable, StreamNotFound
from spass.core.ids import AgentName, SessionId, UserId
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.leases import LEASE_SECONDS, LeaseLost
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Absent, AtMost, Condition, Delete, Equals, Item, Put, Update, Value

KEEP_SECONDS: Final = 24 * 3600
"""Seconds for which a stream is kept, counted from the claim of its attempt."""
_CLAIM_ATTEMPTS: Final = 8  # each failed one means that another request has changed the head


class StreamState(StrEnum):
    """The state of an attempt. One that is ``RUNNING`` with an expired lease is lost."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class StopState(StrEnum):
    """The state of a stream for the client that stops it. ``CANCELLING``: the turn ends soon. A lost turn has ``FAILED``."""

    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The head of a stream.

    ``digest`` identifies the stream in the table (``stream_digest``), and ``body_hash`` its request's body. The chunks of
    ``attempt`` are in the partition of ``session``, and after a move in that of ``successor``. The lease of ``owner`` ends at
    ``expires_at``, and head and chunks expire at ``ttl`` (seconds since the epoch). ``stop`` is True if a client asked to stop.
    """

    digest: str
    body_hash: str
    session: SessionId
    successor: SessionId | None
    attempt: int
    owner: str
    expires_at: int
    state: StreamState
    stop: bool
    ttl: int

    @property
    def last_session(self) -> SessionId:
        """Return the session in which the attempt continues."""
        return self.successor or self.session

    def is_live(self, now: float) -> bool:
        """Return whether the attempt is running under a lease that has not expired."""
        return self.state is StreamState.RUNNING and now < self.expires_at

    def is_same_attempt(self, other: "StreamHead | None") -> bool:
        return other is not None and (self.owner, self.attempt) == (other.owner, other.attempt)


def stream_digest(user: UserId, agent: AgentName, message_id: str) -> str:
    """Return the SHA-256 (hex) that identifies the stream ``message_id`` of a user and an agent in the tenant's table."""
    return hashlib.sha256(json.dumps([user, agent, message_id]).encode()).hexdigest()


async def read_head(store: TenantStore, digest: str, consistent: bool = True) -> StreamHead | None:
    """Return the head of a stream, or None if there is none or it has expired."""
    item = await store.table.get(keys.stream_head(store.tenant, digest), consistent=consistent)
    return _decode_head(digest, item) if item else None


class StreamClaim:
    """The right of one attempt to write a stream. ``head`` is the head as this owner last wrote it."""

    def __init__(self, store: TenantStore, head: StreamHead, earlier: StreamHead | None) -> None:
        self.store = store
        self.head = head
        self._earlier = earlier
        self._session_changes = 0

    @property
    def previous_owner(self) -> str | None:
        """Return the owner of the attempt that this one replaces. It may still hold the session."""
        return self._earlier.owner if self._earlier is not None else None

    @property
    def key(self) -> keys.Key:
        return keys.stream_head(self.store.tenant, self.head.digest)

    async def renew(self, now: float) -> None:
        """Extend the lease by a minute, unless this attempt has ended.

        Raises:
            LeaseLost: another attempt owns the stream, or the stream was deleted.
            StorageUnavailable: the outcome is unknown.
        """
        expires_at = int(now) + LEASE_SECONDS
        try:
            await self.store.table.write(Update(self.key, set={"expires_at": expires_at}, when=self.is_mine))
        except ConditionFailed as failure:
            if not failure.item or failure.item.get("owner") != self.head.owner:
                raise lease_lost() from None
        else:
            self.head = replace(self.head, expires_at=expires_at)

    def check_lease(self, now: float) -> None:
        """Raise ``LeaseLost`` if the lease has expired by this process's own clock: another attempt may run."""
        if now >= self.head.expires_at:
            raise lease_lost()

    async def use_session(self, session: SessionId) -> None:
        """Continue in another session than the claim chose. Call this before the first chunk is written.

        Raises:
            LeaseLost: another attempt owns the stream.
            StorageUnavailable: the outcome is unknown.
        """
        # A duplicate of an earlier write may arrive late. It must not bring an earlier session back.
        self._session_changes = number = self._session_changes + 1
        is_newest = Absent("session_changes") | AtMost("session_changes", number)
        await self._set({"session": session, "session_changes": number}, self.is_mine & is_newest)
        self.head = replace(self.head, session=session)

    async def move_to(self, successor: SessionId) -> None:
        """Store that the stream continues in the partition of ``successor``. Errors are those of ``use_session``."""
        await self._set({"successor": successor}, self.is_mine)
        self.head = replace(self.head, successor=successor)

    async def is_stop_requested(self) -> bool:
        """Return whether a client asked to stop this attempt, eventually consistent. An unreachable table counts as no."""
        try:
            head = await read_head(self.store, self.head.digest, consistent=False)
        except StorageUnavailable:
            return False
        return head is not None and head.stop and self.head.is_same_attempt(head)

    async def undo(self) -> None:
        """Restore the head that the claim replaced, or delete it, if the request is refused before its first event.

        If that fails, the lease expires and the stream looks like that of a lost turn.
        """
        earlier = self._earlier
        undo = Put(self.key, _attributes(earlier), self.is_mine) if earlier else Delete(self.key, self.is_mine)
        with suppress(ConditionFailed, StorageUnavailable):
            await self.store.table.write(undo)

    async def abandon(self) -> None:
        """End an attempt without events as failed, because it is unknown whether its session was created or held. The next
        attempt continues that session and takes over its hold.

        If that fails, the lease expires and the stream looks like that of a lost turn.
        """
        with suppress(ConditionFailed, StorageUnavailable):
            await self.store.table.write(self.ending(StreamState.FAILED))

    def ending(self, state: StreamState) -> Update:
        """Return the write that ends the attempt, for the transaction with its last chunk. It fails if the claim was lost."""
        return Update(self.key, set={"state": state}, when=self.is_mine)

    @property
    def is_mine(self) -> Condition:
        """Return the condition of every write of the owner."""
        return Equals("owner", self.head.owner) & Equals("state", StreamState.RUNNING)

    async def _set(self, values: Mapping[str, Value], when: Condition) -> None:
        try:
            await self.store.table.write(Update(self.key, set=values, when=when))
        except ConditionFailed:
            raise lease_lost() from None


async def claim(
    store: TenantStore, digest: str, body_hash: str, session: SessionId, owner: str, now: float
) -> StreamClaim | StreamHead:
    """Return the right to run the next attempt of a stream, or its head if an attempt is running or done.

    The first attempt continues ``session``, and a later one the last session of the attempt before it.

    Raises:
        IdempotencyKeyReused: the stream belongs to a request with another body.
        StorageUnavailable: the outcome is unknown; the claim, if it was taken, is undone or expires.
    """
    first = StreamHead(
        digest=digest,
        body_hash=body_hash,
        session=session,
        successor=None,
        attempt=1,
        owner=owner,
        expires_at=int(now) + LEASE_SECONDS,
        state=StreamState.RUNNING,
        stop=False,
        ttl=int(now) + KEEP_SECONDS,
    )
    earlier: StreamHead | None = None
    for _ in range(_CLAIM_ATTEMPTS):
        head = replace(first, session=earlier.last_session, attempt=earlier.attempt + 1) if earlier else first
        claimed = StreamClaim(store, head, earlier)
        try:
            await store.table.write(Put(claimed.key, _attributes(head), _is_unchanged(earlier, now)))
        except ConditionFailed as failure:
            stored = _decode_head(digest, failure.item) if failure.item else None
        except StorageUnavailable:
            await claimed.undo()
            raise
        else:
            return claimed
        if head.is_same_attempt(stored):  # the reply to our write was lost
            return claimed
        if stored is not None:
            if stored.body_hash != body_hash:
                raise IdempotencyKeyReused(
                    "This message_id or Idempotency-Key was used with another body; use a new one for a new request."
                )
            if stored.is_live(now) or stored.state is StreamState.DONE:
                return stored
        earlier = stored
    raise StorageUnavailable("Too many requests for this stream at once; try again.", retry_after=1)


async def request_stop(store: TenantStore, digest: str, now: float) -> StopState:
    """Ask the running attempt of a stream to stop.

    Raises:
        StreamNotFound: there is no such stream.
        StorageUnavailable: the outcome is unknown; repeat the request.
    """
    key = keys.stream_head(store.tenant, digest)
    try:
        item = await store.table.write(Update(key, set={"stop": True}, when=Equals("state", StreamState.RUNNING)))
    except ConditionFailed as failure:
        item = failure.item
    head = _decode_head(digest, item) if item else None
    if head is None or head.ttl <= now:
        raise stream_not_found()
    if head.is_live(now):
        return StopState.CANCELLING
    return StopState.DONE if head.state is StreamState.DONE else StopState.FAILED


def lease_lost() -> LeaseLost:
    """Return the error of an attempt that has lost its stream, or may have."""
    return LeaseLost("Another attempt of this request has taken over; try again.", retry_after=1)


def stream_not_found() -> StreamNotFound:
    """Return the error for a stream that does not exist for this user and agent, or no longer."""
    return StreamNotFound(
        "This stream does not exist. Streams are kept for 24 hours; the answer may be in the session's history."
    )


def _is_unchanged(earlier: StreamHead | None, now: float) -> Condition:
    """Require that the head is ``earlier``, or None or expired. Conditions also see expired items, which reads omit."""
    if earlier is None:
        return ITEM_ABSENT | AtMost(TTL, int(now))
    return (
        Equals("owner", earlier.owner)
        & Equals("attempt", earlier.attempt)
        & Equals("state", earlier.state)
        & Equals("expires_at", earlier.expires_at)
    )


def _attributes(head: StreamHead) -> dict[str, Value]:
    return encode(head, without=("digest",))  # it is in the key


def _decode_head(digest: str, item: Item) -> StreamHead:
    return decode(StreamHead, {"stop": False, **item}, digest=digest)
