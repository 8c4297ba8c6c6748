"""``Idempotency-Key``: do the work of a repeated request once, and store its response for a day.

The response is stored in the transaction of the request's effect. A request without an effect in our storage (a bare model call)
stores the response in a separate write. While a request runs, it has a lease on its key (``acquire``). A turn does not need this
lease, because it has a lease on its session.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from spass.core.errors import IdempotencyInProgress, IdempotencyKeyReused, SpassError
from spass.core.ids import TenantId, UserId, random_suffix
from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.core.time import now_s
from spass.store import keys
from spass.store.leases import LEASE_SECONDS, RETRY_SECONDS, LeaseLost, renewing
from spass.store.overflow import Overflow
from spass.store.table import TTL, ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, AtMost, Condition, Delete, Equals, Item, Put, Update, Value, Write

A_contra = TypeVar("A_contra", contravariant=True)

_KEEP_SECONDS: Final = 24 * 3600
_RESPONSE: Final = Overflow("answer", most_bytes=300_000, transient=True)  # an item may hold 400 KB


@dataclass(frozen=True, slots=True)
class RequestHashes:
    """The hashes that identify a request with an Idempotency-Key, for records that must not hold the key."""

    digest: str
    body_hash: str


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request with an Idempotency-Key. Each user of each token has keys of its own for each ``path`` (from the API's root).
    ``body_hash`` is the SHA-256 (hex) of the body."""

    tenant: TenantId
    token_id: str
    user: UserId | None
    method: str
    path: str
    key: str
    body_hash: str

    @property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of everything but the body. It identifies the request in the table."""
        parts = [self.tenant, self.token_id, self.user, self.method, self.path, self.key]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def hashes(self) -> RequestHashes:
        return RequestHashes(self.digest, self.body_hash)

    def at(self, path: str) -> "IdempotentRequest":
        """Return the request as a client repeats it after a redirect to ``path``."""
        return replace(self, path=path)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response that a repeated request gets: the JSON body and its headers. If ``status`` is None, the response has the usual
    status of the route. The response is stored for a day, or until ``expires_at`` (seconds since the epoch)."""

    body: Mapping[str, Json]
    headers: Mapping[str, str]
    status: int | None = None
    expires_at: int | None = None


async def read(store: TenantStore, request: IdempotentRequest) -> StoredResponse | None:
    """Return the stored response, or None if the request is still running or was never received. Raise ``IdempotencyKeyReused``
    if the key was used with another body."""
    item = await store.table.get(keys.idempotency(store.tenant, request.digest))
    return await _stored_response(store, request, item) if item else None


async def record(store: TenantStore, request: IdempotentRequest, response: StoredResponse) -> Put:
    """Return the write that stores ``response``, for the transaction of the request's effect. It fails if one is stored."""
    return await _completion(store, request, response, None, _absent(now_s()))


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to do the work of a request: a lease of ``owner``."""

    store: TenantStore
    request: IdempotentRequest
    owner: str

    async def completion(self, response: StoredResponse) -> Put:
        """Return the write that stores ``response`` and ends the claim, for the transaction of the request's effect. It fails if
        this owner has lost the claim."""
        return await _completion(self.store, self.request, response, self.owner, self._is_mine())

    async def complete(self, response: StoredResponse) -> None:
        """Store ``response`` in a separate write, for a request without an effect in our storage. Raise ``LeaseLost`` if another
        attempt has acquired the claim."""
        try:
            await self._write(await self.completion(response))
        except ConditionFailed:
            raise claim_lost() from None

    async def renew(self) -> None:
        """Extend the claim by a minute, unless it was completed. Raise ``ConditionFailed`` if another attempt has acquired the
        claim."""
        await self._write(Update(self.key, set={"expires_at": now_s() + LEASE_SECONDS}, when=self._is_mine()))

    async def release(self) -> None:
        """Release the claim after a failure, so that the client may repeat the request with the same key."""
        with suppress(ConditionFailed):
            await self.store.table.write(Delete(self.key, self._is_mine()))

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Renew the claim while the body runs, and release it if the body fails. If the release fails, the claim expires with its
        lease.

        Raises:
            LeaseLost: another attempt has acquired the claim; the body was cancelled.
        """
        try:
            async with renewing(self.renew):
                yield
        except Exception:
            with suppress(SpassError):
                await self.release()
            raise

    async def _write(self, write: Put | Update) -> None:
        """Do ``write`` unless this owner has completed the claim."""
        try:
            await self.store.table.write(write)
        except ConditionFailed as failure:
            if not failure.item or failure.item.get("owner") != self.owner:
                raise

    @property
    def key(self) -> keys.Key:
        return keys.idempotency(self.store.tenant, self.request.digest)

    def _is_mine(self) -> Condition:
        return Equals("state", "running") & Equals("owner", self.owner)


@dataclass(frozen=True, slots=True)
class Completion(Generic[A_contra]):
    """A participant of a swap that stores the response under the request's ``claim``: ``body`` of the swap's answer, with the
    ``headers`` of that moment."""

    claim: Claim
    body: Callable[[A_contra], Mapping[str, Json]]
    headers: Callable[[], Mapping[str, str]] = dict

    async def writes(self, answer: A_contra, /) -> Sequence[Write]:
        """Return the write that stores the response."""
        return [await self.claim.completion(StoredResponse(self.body(answer), self.headers()))]

    def refusal(self) -> SpassError:
        """Return the error of an attempt whose claim has passed to another one."""
        return claim_lost()


async def put_once(
    store: TenantStore, writes: Sequence[Write], *, token: str, claim: Claim | None, response: StoredResponse
) -> None:
    """Put new items, the first of which has a new id and is absent, and store ``response`` under the claim, if there is one.

    Raises:
        LeaseLost: another attempt has acquired the claim; nothing was created.
        TransactionFailed: another condition of ``writes`` does not hold; nothing was created.
        StorageUnavailable: the table does not answer; whether the items were created is unknown.
    """
    completion = [await claim.completion(response)] if claim is not None else []
    try:
        await store.table.transact([*writes, *completion], token=token)
    except TransactionFailed as failure:
        if await store.table.get(writes[0].key) is None:
            if claim is not None and len(writes) in failure.failures:
                raise claim_lost() from None
            raise


def claim_lost() -> LeaseLost:
    """Return the error of an attempt that has lost its claim to another one."""
    return LeaseLost("Another try of this request has taken over; try again.", retry_after=1)


async def acquire(store: TenantStore, request: IdempotentRequest) -> Claim | StoredResponse:
    """Return the right to do the work of the request, or the stored response if the work is done.

    Raises:
        IdempotencyInProgress: another attempt is running.
        IdempotencyKeyReused: the key was used with another body.
    """
    now = now_s()
    claim = Claim(store, request, random_suffix())
    attributes: dict[str, Value] = {
        "state": "running",
        "owner": claim.owner,
        "body_hash": request.body_hash,
        "expires_at": now + LEASE_SECONDS,
        TTL: now + _KEEP_SECONDS,
    }
    free = _absent(now) | (Equals("state", "running") & AtMost("expires_at", now))
    try:
        await store.table.write(Put(claim.key, attributes, free))
    except ConditionFailed as failure:
        item = failure.item or {}
        if item.get("owner") == claim.owner:
            return claim
        response = await _stored_response(store, request, item)
        if response is None:
            raise IdempotencyInProgress(
                "A request with this Idempotency-Key is still running.", retry_after=RETRY_SECONDS
            ) from None
        return response
    return claim


def _absent(now: int) -> Condition:
    """Return the condition that the key is not in use. Conditions also see expired items, which reads omit."""
    return ITEM_ABSENT | AtMost(TTL, now)


async def _stored_response(store: TenantStore, request: IdempotentRequest, item: Item) -> StoredResponse | None:
    if item.get("body_hash") != request.body_hash:
        raise IdempotencyKeyReused("This Idempotency-Key was used with another body; use a new key for a new request.")
    if item.get("state") != "done":
        return None
    (encoded,) = await _RESPONSE.load(store, [item])
    response = json.loads(encoded)
    return StoredResponse(response["body"], response["headers"], response.get("status"))


async def _completion(
    store: TenantStore, request: IdempotentRequest, response: StoredResponse, owner: str | None, when: Condition
) -> Put:
    content: dict[str, Json] = {"body": response.body, "headers": dict(response.headers)}
    if response.status is not None:
        content["status"] = response.status
    attributes: dict[str, Value] = {
        "state": "done",
        "owner": owner,
        "body_hash": request.body_hash,
        TTL: response.expires_at or now_s() + _KEEP_SECONDS,
    }
    attributes |= await _RESPONSE.store(store, f"idempotency/{request.digest}/{random_suffix()}", dump_bytes(content))
    return Put(keys.idempotency(store.tenant, request.digest), attributes, when)
