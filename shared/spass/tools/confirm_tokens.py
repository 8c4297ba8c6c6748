"""Two-step confirm: a token that says "yes, this very call", good once, for a minute, and while the preview still holds.

The token carries its own expiry and a nonce, and a tag over both and over what it confirms: HMAC-SHA256 with a key of the
tenant's. So a token for another call is told from a late one without a look at the table. An item of its own says that it has not
been used, and what state its preview showed; the transaction that carries the call out deletes that item.
"""

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NewType, TypeAlias

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.table import TTL, ConditionFailed
from spass.aws.writes import ITEM_ABSENT, ITEM_EXISTS, Delete, Put, Write
from spass.calls.scope import Scope
from spass.core.errors import ConfirmTokenExpired, ConfirmTokenInvalid, InternalError, SpassError
from spass.core.ids import DocumentId, IndexId, TenantId
from spass.core.json import dump_canonical
from spass.core.messages import Json
from spass.core.time import now_s
from spass.rag.index.answers import Document, WriteAnswer
from spass.tenancy.identity import Caller
from spass.tenancy.memory_notes import NoteResult

CONFIRM_SECONDS: Final = 60

_EXPIRY_BYTES: Final = 6
_NONCE_BYTES: Final = 16
_KEY_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{72}")  # 54 bytes fill it to the last bit, so no two texts are the same token
_TOKEN_TTL_SECONDS: Final = 3600  # after its expiry: a call confirmed in time may take until its deadline

WriteResult: TypeAlias = WriteAnswer | Document | NoteResult | bool
"""What a confirmed write comes to; ``bool`` says whether something was deleted."""
UnsignedToken = NewType("UnsignedToken", str)
"""A token without its signature."""
RecordResult: TypeAlias = Callable[[Json], Awaitable[Sequence[Write]]]
"""The writes that keep a tool's result for whoever sends the same request again."""


def to_result(written: WriteResult) -> dict[str, Json]:
    """Return ``written`` as the HTTP route answers that does the same, if there is one."""
    match written:
        case bool():
            return {"deleted": written}
        case NoteResult():
            return {"memory_size_bytes": written.memory_size_bytes}
        case WriteAnswer() | Document():
            return written.to_dict()


@dataclass(frozen=True, slots=True)
class ConfirmedOperation:
    """What is confirmed: the tool ``op``, on ``index`` and on one ``document`` of it if it is about such, with the rest of the
    arguments in ``body``."""

    op: str
    index: IndexId | None = None
    document: DocumentId | None = None
    body: Mapping[str, Json] = field(default_factory=dict)

    def fingerprint(self, caller: Caller) -> bytes:
        """SHA-256 over whose call it is and all that it says. The order in which members of an object are written makes no
        difference."""
        body = hashlib.sha256(dump_canonical(self.body)).hexdigest()
        return hashlib.sha256(dump_canonical([caller.tenant, caller.user, self.op, self.index, self.document, body])).digest()


@dataclass(frozen=True, slots=True)
class TokenRedemption:
    """The use of a token, which takes effect together with the write that it confirms, and with what is to ``keep`` its result (a
    ``Participant``). ``state`` is the entity tag of what the preview showed; empty if the preview binds to nothing."""

    token: keys.Key
    state: str = ""
    keep: RecordResult | None = None

    async def writes(self, written: WriteResult, /) -> Sequence[Write]:
        kept = await self.keep(to_result(written)) if self.keep else ()
        return [Delete(self.token, ITEM_EXISTS), *kept]

    def refusal(self) -> SpassError:
        return _token_invalid()


class ConfirmTokens:
    """Hands tokens out and takes them back. What is kept in memory are the tenants' keys, which never change."""

    def __init__(self) -> None:
        self._keys: dict[TenantId, bytes] = {}

    async def issue(self, scope: Scope, operation: ConfirmedOperation, state: str = "") -> str:
        """Return a token with which this caller may carry out ``operation`` once, while what the preview showed still has the
        entity tag ``state``.

        Raises:
            StorageUnavailable: it could not be kept.
        """
        expires_at = now_s() + CONFIRM_SECONDS
        head = expires_at.to_bytes(_EXPIRY_BYTES, "big") + os.urandom(_NONCE_BYTES)
        token = await self._signed(scope, operation, head)
        put = Put(_item(scope.store, token), {"state": state, TTL: expires_at + _TOKEN_TTL_SECONDS})
        await scope.store.table.write(put)
        return token

    async def sign(self, scope: Scope, operation: ConfirmedOperation, unsigned: UnsignedToken) -> str:
        """Return the token of which only its ``strip_signature`` part was kept."""
        return await self._signed(scope, operation, base64.urlsafe_b64decode(unsigned))

    async def redeem(self, scope: Scope, operation: ConfirmedOperation, token: str) -> TokenRedemption:
        """The right to carry out ``operation``. Nothing is consumed yet: that happens beside the write, or, if it fails, not at
        all. A token that has been used is refused here already, so that nothing is embedded for it.

        Raises:
            ConfirmTokenInvalid: it was not given for this call and this caller, or has been used.
            ConfirmTokenExpired: it was, but more than a minute ago.
        """
        if not _TOKEN.fullmatch(token):
            raise _token_invalid()
        signed = base64.urlsafe_b64decode(token)
        head, tag = signed[: _EXPIRY_BYTES + _NONCE_BYTES], signed[_EXPIRY_BYTES + _NONCE_BYTES :]
        if not hmac.compare_digest(tag, await self._tag(scope, operation, head)):
            raise _token_invalid()
        if now_s() > int.from_bytes(head[:_EXPIRY_BYTES], "big"):
            raise _token_expired()
        key = _item(scope.store, token)
        item = await scope.store.table.get(key)
        if item is None:
            raise _token_invalid()
        return TokenRedemption(key, str(item.get("state", "")))

    async def refusal(self, scope: Scope, redemption: TokenRedemption) -> SpassError:
        """Return why a call is refused whose preview no longer holds: its token was used meanwhile, or something else changed."""
        return _token_invalid() if await scope.store.table.get(redemption.token) is None else _state_changed()

    async def _signed(self, scope: Scope, operation: ConfirmedOperation, head: bytes) -> str:
        return base64.urlsafe_b64encode(head + await self._tag(scope, operation, head)).decode()

    async def _tag(self, scope: Scope, operation: ConfirmedOperation, head: bytes) -> bytes:
        key = await self._key(scope.store)
        return hmac.digest(key, head + operation.fingerprint(scope.caller), "sha256")

    async def _key(self, store: TenantStore) -> bytes:
        key = self._keys.get(store.tenant)
        if key is None:
            key = self._keys[store.tenant] = await _load_or_create_key(store)
        return key


async def _load_or_create_key(store: TenantStore) -> bytes:
    """The tenant's key; made now if this is its first token. Who makes one at the same time as another takes the other's."""
    where = keys.confirm_key(store.tenant)
    item = await store.table.get(where)
    if item is None:
        made = os.urandom(_KEY_BYTES)
        put = Put(where, {"key": made}, ITEM_ABSENT)
        try:
            await store.table.write(put)
        except ConditionFailed as failure:
            item = failure.item or {}
        else:
            return made
    key = item.get("key")
    if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
        raise InternalError("The key of confirm tokens cannot be read.")
    return key


def _item(store: TenantStore, token: str) -> keys.Key:
    return keys.confirm(store.tenant, hashlib.sha256(token.encode()).hexdigest())


def strip_signature(token: str) -> UnsignedToken:
    """Return ``token`` without its signature. It confirms nothing until ``Confirmations.sign`` adds the signature again."""
    return UnsignedToken(base64.urlsafe_b64encode(base64.urlsafe_b64decode(token)[: _EXPIRY_BYTES + _NONCE_BYTES]).decode())


def token_expiry(token: str) -> int:
    """Return the last second, since the epoch, in which ``token`` is good."""
    return int.from_bytes(base64.urlsafe_b64decode(token)[:_EXPIRY_BYTES], "big")


def _token_invalid() -> ConfirmTokenInvalid:
    return ConfirmTokenInvalid(
        "This confirm_token was not given for this very call, or it was used already. Check whether the change has been made; if "
        "not, call again without confirm_token, and then with the new token and exactly the same arguments.",
        param="confirm_token",
    )


def _state_changed() -> ConfirmTokenInvalid:
    return ConfirmTokenInvalid(
        "What the preview showed has changed since, so this confirm_token is no longer good, and this call changed nothing. Call "
        "again without confirm_token to see what the call would do now, and for a new token.",
        param="confirm_token",
    )


def _token_expired() -> ConfirmTokenExpired:
    return ConfirmTokenExpired(
        f"This confirm_token is older than {CONFIRM_SECONDS} seconds. Call again without confirm_token to get a new one.",
        param="confirm_token",
    )
