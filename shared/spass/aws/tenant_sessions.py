"""Sessions of the role that reaches tenants' data. Each reaches the data of one tenant: the one that its tag names.

The policies of the role compare keys with the tag (infra/constructs/roles.py), so an error in this process reaches no other
tenant's data. (https://docs.aws.amazon.com/IAM/latest/UserGuide/id_session-tags.html)
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from spass.aws.http_connection import Answer, NoAnswer
from spass.aws.signed_service import SignedService
from spass.aws.signing import AccessKey, SigningFailed
from spass.core.errors import InternalError, StorageUnavailable
from spass.core.ids import TENANT_ID, TenantId
from spass.core.tasks import back_off
from spass.core.time import now_s
from spass.store.invocation import ServiceCall, invoke

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_MAX_SESSIONS: Final = 16
_SECONDS: Final = 3600  # AWS allows no longer session of a role that another role assumes
_RENEW_SECONDS: Final = 20 * 60  # before the end: an invocation and the form of an upload take up to 15 minutes
_PAUSE_SECONDS: Final = 30  # between attempts to renew a session that is still valid
_PATIENCE_SECONDS: Final = 1.0  # for the renewal of a session that is still valid
_DELAY: Final = 0.1  # seconds before the second attempt, full jitter
_MAX_CALL_SECONDS: Final = 5.0  # of both attempts; a request of a client waits for it
_THROTTLED: Final = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded"})  # with status 400
_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
_FIELDS: Final = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")


class TenantSession:
    """Credentials for the data of one tenant until ``expires`` (seconds since the epoch).

    ``s3`` is boto3's client with these credentials, once one was needed.
    """

    def __init__(self, key: AccessKey, expires: int, now: int) -> None:
        self.key = key
        self.expires = expires
        # Later for a short session, or a clock that is ahead: otherwise each access would ask for a new one.
        self.renewal = max(expires - _RENEW_SECONDS, min(now + _PAUSE_SECONDS, expires))
        self.s3: S3Client | None = None


class TenantSessions:
    """The sessions of this process: at most 16, of the tenants that were served last. ``role`` is the ARN of the role."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._sts = SignedService("sts", connect_seconds=1.0, silence_seconds=3.0)
        self._sessions: OrderedDict[TenantId, TenantSession] = OrderedDict()
        self._pending: dict[TenantId, asyncio.Task[TenantSession]] = {}

    async def get(self, tenant: TenantId) -> TenantSession:
        """Return the session of ``tenant``. Assume the role if there is none or it ends within 20 minutes.

        Raises:
            StorageUnavailable: STS refused or did not answer, and there is no session that is still valid.
        """
        session, now = self._sessions.get(tenant), now_s()
        if session is not None:
            self._sessions.move_to_end(tenant)
            if now < session.renewal:
                return session
        if session is None or now >= session.expires:
            return await self._renew(tenant)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await self._renew(tenant)
        except (StorageUnavailable, TimeoutError):
            session.renewal = min(now + _PAUSE_SECONDS, session.expires)
            return session

    def prepare(self) -> None:
        """Read the environment and the certificates now, instead of at the first session."""
        self._sts.prepare()

    def close(self) -> None:
        """Close the idle connections of the running event loop, in its next iteration."""
        self._sts.close()

    async def _renew(self, tenant: TenantId) -> TenantSession:
        """Assume the role once for all concurrent callers. A cancelled caller does not cancel the call of the others."""
        loop = asyncio.get_running_loop()
        pending = self._pending.get(tenant)
        if pending is None or pending.done() or pending.get_loop() is not loop:
            pending = self._pending[tenant] = loop.create_task(self._assume(tenant))
            pending.add_done_callback(lambda task: self._end(tenant, task))
        return await asyncio.shield(pending)

    def _end(self, tenant: TenantId, task: "asyncio.Task[TenantSession]") -> None:
        if self._pending.get(tenant) is task:
            del self._pending[tenant]
        if not task.cancelled():
            task.exception()  # without this, asyncio would log an error that no caller waits for

    async def _assume(self, tenant: TenantId) -> TenantSession:
        if not re.fullmatch(TENANT_ID, tenant):
            raise PermissionError("not the id of a tenant")  # a wildcard in it would match the keys of others
        parameters = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self._role,
            "RoleSessionName": f"{tenant}@",  # at least two characters
            "DurationSeconds": str(_SECONDS),
            "Tags.member.1.Key": "tenant",
            "Tags.member.1.Value": tenant,
        }
        body = urlencode(parameters).encode()
        session = await invoke(ServiceCall("sts", "AssumeRole", parameters), lambda: self._call(body))
        self._sessions[tenant] = session
        self._sessions.move_to_end(tenant)
        while len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    async def _call(self, body: bytes) -> TenantSession:
        try:
            async with asyncio.timeout(_MAX_CALL_SECONDS):
                answer = await self._first_attempt(body)
                if answer is None:
                    await back_off(_DELAY)
                    answer = await self._sts.post(body, _HEADERS, on_new_connection=True)
        except (NoAnswer, SigningFailed, TimeoutError) as error:
            raise _unavailable() from error
        if answer.status == 200:
            return _session(answer)
        code = _field(answer, "Code") or answer.status
        reason = f"STS refused a session of the role that reaches a tenant's data ({code}). Check the role's trust policy."
        raise _unavailable() from InternalError(reason)

    async def _first_attempt(self, body: bytes) -> Answer | None:
        """Return the answer of STS, or None if another attempt may succeed."""
        try:
            answer = await self._sts.post(body, _HEADERS)
        except NoAnswer:
            return None
        is_transient = answer.status >= 500 or answer.status == 429 or _field(answer, "Code") in _THROTTLED
        return None if is_transient else answer


class TenantKeys:
    """The credentials of one tenant's session, for requests that are signed here."""

    def __init__(self, sessions: TenantSessions, tenant: TenantId) -> None:
        self._sessions = sessions
        self._tenant = tenant

    async def access_key(self) -> AccessKey:
        """Return the credentials to use now. Raise ``StorageUnavailable`` if there are none."""
        return (await self._sessions.get(self._tenant)).key


def _unavailable() -> StorageUnavailable:
    return StorageUnavailable("The storage could not be reached; try again.", retry_after=1)


def _session(answer: Answer) -> TenantSession:
    """Return the session that STS answered with (XML).

    Raises:
        StorageUnavailable: the answer is incomplete, or the session has ended.
    """
    key_id, secret, token, end = (_field(answer, name) for name in _FIELDS)
    if not (key_id and secret and token and end):
        raise _unavailable()
    try:
        expires = int(datetime.fromisoformat(end).timestamp())
    except ValueError:
        raise _unavailable() from None
    now = now_s()
    if expires <= now:
        raise _unavailable()
    return TenantSession(AccessKey(key_id, secret, token), expires, now)


def _field(answer: Answer, name: str) -> str | None:
    found = re.search(rf"<{name}>\s*([\x21-\x3b\x3d-\x7e]+?)\s*</{name}>", answer.body.decode("latin-1"))
    return found[1] if found else None
