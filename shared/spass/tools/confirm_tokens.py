"""Confirm tokens: single-use permission for one exact call, valid for one minute and while its preview is still correct.

A token consists of its expiry, a nonce, a digest of the state that the preview showed, and a tag. The tag is an HMAC-SHA256, with
a key of the tenant, of the rest of the token and of the confirmed call. So a token is issued without a write to the table.

The transaction that executes the call puts an item that marks the token as used, on condition that there is none. So a token
works once.
"""

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NewType, Protocol, TypeAlias

from spass.calls.scope import Scope
from spass.core.errors import ConfirmTokenExpired, ConfirmTokenInvalid, InternalError, SpassError
from spass.core.ids import TenantId
from spass.core.json import dump_canonical
from spass.core.messages import Json
from spass.core.time import now_s
from spass.rag.index.responses import Document, WriteAnswer
from spass.store import keys
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put, Write
from spass.tenancy.identity import Caller
from spass.tenancy.stored_settings import NoteResult

WriteResult: TypeAlias = WriteAnswer | Document | NoteResult | bool
"""The result of a confirmed write. A ``bool`` says whether something was deleted."""


def to_result(written: WriteResult) -> dict[str, Json]:
    """Return ``written`` in the form of the HTTP route that makes the same change."""
    match written:
        case bool():
            return {"deleted": written}
        case NoteResult():
            return {"memory_size_bytes": written.memory_size_bytes}
        case WriteAnswer() | Document():
            return written.to_dict()


class Consent(Protocol):
    """Consent to one call (a ``Participant`` of its write). The transaction of the write uses it up."""

    def allows(self, state: str, /) -> bool:
        """Return whether the preview of the call showed ``state``, an entity tag."""
        ...

    async def writes(self, written: WriteResult, /) -> Sequence[Write]:
        """Return the writes that use up the consent, and those that store the result."""
        ...

    def refusal(self) -> SpassError:
        """Return the error of a call whose consent was used up by another call."""
        ...

    async def outdated(self, scope: Scope, /) -> SpassError:
        """Return the error of a call whose preview is out of date."""
        ...


CONFIRM_SECONDS: Final = 60

_EXPIRY_BYTES: Final = 6
_NONCE_BYTES: Final = 8
_STATE_BYTES: Final = 24
_TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{72}")  # 54 bytes are exactly 72 characters, so a token has one spelling
_USED_SECONDS: Final = 3600  # from the expiry: a call that was confirmed in time may run until its deadline

UnsignedToken = NewType("UnsignedToken", str)
"""A token without its tag."""
RecordResult: TypeAlias = Callable[[Json], Awaitable[Sequence[Write]]]
"""Return the writes that store a tool's result for a repetition of the same request."""


@dataclass(frozen=True, slots=True)
class ConfirmedOperation:
    """The confirmed call: the tool ``op`` and all of its arguments."""

    op: str
    arguments: Mapping[str, Json]

    def fingerprint(self, caller: Caller) -> bytes:
        """Return the SHA-256 of the caller and the call. The order of an object's members makes no difference."""
        return hashlib.sha256(dump_canonical([caller.tenant, caller.user, self.op, self.arguments])).digest()


@dataclass(frozen=True, slots=True)
class TokenRedemption:
    """The use of a token, the ``Consent`` of the caller. It takes effect in the transaction of the write that the token confirms,
    together with the writes of ``record_result``."""

    mark: Put
    state_digest: bytes = b""
    record_result: RecordResult | None = None

    def allows(self, state: str, /) -> bool:
        return self.state_digest == _digest(state)

    async def writes(self, written: WriteResult, /) -> Sequence[Write]:
        record_writes = await self.record_result(to_result(written)) if self.record_result else ()
        return [self.mark, *record_writes]

    def refusal(self) -> SpassError:
        return _token_invalid()

    async def outdated(self, scope: Scope, /) -> SpassError:
        """Return the error for a call whose preview is out of date: its token was used, or the data has changed."""
        return _state_changed() if await scope.store.table.get(self.mark.key) is None else _token_invalid()


class ConfirmTokens:
    """Issue and redeem tokens. Caches the tenants' keys, which never change. ``clock`` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], int] = now_s) -> None:
        self._clock = clock
        self._keys: dict[TenantId, bytes] = {}

    async def issue(self, scope: Scope, operation: ConfirmedOperation, state: str = "") -> str:
        """Return a token with which this caller may execute ``operation`` once, while the previewed data has the entity tag
        ``state``. Raise StorageUnavailable if the tenant's key could not be read."""
        expires_at = self._clock() + CONFIRM_SECONDS
        head = expires_at.to_bytes(_EXPIRY_BYTES, "big") + os.urandom(_NONCE_BYTES) + _digest(state)
        return await self._append_tag(scope, operation, head)

    async def sign(self, scope: Scope, operation: ConfirmedOperation, unsigned: UnsignedToken) -> str:
        """Return the complete token for one that was stored without its tag."""
        return await self._append_tag(scope, operation, base64.urlsafe_b64decode(unsigned))

    async def redeem(self, scope: Scope, operation: ConfirmedOperation, token: str) -> TokenRedemption:
        """Check ``token`` and return its redemption, which takes effect with the confirmed write and not before.

        A used token is refused here, before a model embeds anything.

        Raises:
            ConfirmTokenInvalid: it was not issued for this call and this caller, or has been used.
            ConfirmTokenExpired: it was issued more than a minute ago.
        """
        if not _TOKEN.fullmatch(token):
            raise _token_invalid()
        decoded = base64.urlsafe_b64decode(token)
        head, tag = decoded[:-_TAG_BYTES], decoded[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, await self._tag(scope, operation, head)):
            raise _token_invalid()
        expires_at = token_expiry(token)
        if self._clock() > expires_at:
            raise ConfirmTokenExpired(
                f"This confirm_token is older than {CONFIRM_SECONDS} seconds. Call again without confirm_token to get a new one.",
                param="confirm_token",
            )
        key = keys.used_confirm_token(scope.store.tenant, hashlib.sha256(token.encode()).hexdigest())
        if await scope.store.table.get(key) is not None:
            raise _token_invalid()
        return TokenRedemption(Put(key, {TTL: expires_at + _USED_SECONDS}, ITEM_ABSENT), head[-_STATE_BYTES:])

    async def _append_tag(self, scope: Scope, operation: ConfirmedOperation, head: bytes) -> str:
        return base64.urlsafe_b64encode(head + await self._tag(scope, operation, head)).decode()

    async def _tag(self, scope: Scope, operation: ConfirmedOperation, head: bytes) -> bytes:
        tenant = scope.store.tenant
        if tenant not in self._keys:
            self._keys[tenant] = await _load_or_create_key(scope.store)
        return hmac.digest(self._keys[tenant], head + operation.fingerprint(scope.caller), "sha256")[:_TAG_BYTES]


async def _load_or_create_key(store: TenantStore) -> bytes:
    """Return the tenant's key; create it for the first token. Two concurrent writers both use the first key."""
    table_key = keys.confirm_secret(store.tenant)
    item = await store.table.get(table_key)
    if item is None:
        new_key = os.urandom(_KEY_BYTES)
        try:
            await store.table.write(Put(table_key, {"key": new_key}, ITEM_ABSENT))
        except ConditionFailed as failure:
            item = failure.item or {}
        else:
            return new_key
    key = item.get("key")
    if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
        raise InternalError("The key of confirm tokens cannot be read.")
    return key


def _digest(state: str) -> bytes:
    return hashlib.sha256(state.encode()).digest()[:_STATE_BYTES]


def strip_tag(token: str) -> UnsignedToken:
    """Return ``token`` without its tag. It confirms nothing until ``ConfirmTokens.sign`` adds the tag again."""
    return UnsignedToken(base64.urlsafe_b64encode(base64.urlsafe_b64decode(token)[:-_TAG_BYTES]).decode())


def token_expiry(token: str) -> int:
    """Return the last second, since the epoch, in which ``token`` is valid."""
    return int.from_bytes(base64.urlsafe_b64decode(token)[:_EXPIRY_BYTES], "big")


def _token_invalid() -> ConfirmTokenInvalid:
    return ConfirmTokenInvalid(
        "This confirm_token was not issued for exactly this call, or it was used already. Check whether the change has been "
        "made; if not, call again without confirm_token, and then with the new token and exactly the same arguments.",
        param="confirm_token",
    )


def _state_changed() -> ConfirmTokenInvalid:
    return ConfirmTokenInvalid(
        "The data in the preview has changed since, so this confirm_token is no longer valid, and this call changed nothing. "
        "Call again without confirm_token to see what the call would do now, and to get a new token.",
        param="confirm_token",
    )
