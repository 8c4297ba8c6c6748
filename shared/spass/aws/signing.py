"""Sign requests to AWS (Signature Version 4) with the credentials of this process.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html. botocore signs through three objects
for each request, at ten times the cost; tests compare the signatures.
"""

import hmac
import os
import threading
import time
from collections.abc import Mapping
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

import anyio.to_thread

if TYPE_CHECKING:
    import boto3
    from botocore.credentials import Credentials

_LONG_BODY: Final = 256 * 1024
"""The bytes from which a body is hashed in a thread, because that takes milliseconds."""


class SigningFailed(Exception):
    """The profile, the credentials or the region is missing, or the credentials could not be renewed."""


class AccessKey(NamedTuple):
    """Credentials of AWS. ``token`` is None for those without a session."""

    id: str
    secret: str
    token: str | None


class KeySource(Protocol):
    """A source of credentials, which may change."""

    async def access_key(self) -> AccessKey:
        """Return the credentials to use now."""
        ...


class CredentialSource:
    """The region and the credentials of this process. The environment gives them to a function; elsewhere boto3 finds and renews
    them."""

    def __init__(self) -> None:
        self._found: Credentials | None = None
        self._search = threading.Lock()  # concurrent first requests search once

    @cached_property
    def region(self) -> str:
        """Return the region of the environment or of the profile.

        Raises:
            SigningFailed: no region is configured.
        """
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or self._session.region_name
        if not region:
            raise SigningFailed("no region")
        return _checked(region)

    @cached_property
    def _of_environment(self) -> AccessKey | None:
        """Return the credentials of the environment, which never change while a process lives."""
        key_id, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if not (key_id and secret) or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE"):
            return None
        return AccessKey(_checked(key_id), secret, _checked(os.environ.get("AWS_SESSION_TOKEN") or "") or None)

    def prepare(self) -> None:
        """Read the environment now."""
        _ = self.region, self._of_environment

    async def access_key(self) -> AccessKey:
        """Return the credentials to use now.

        Raises:
            SigningFailed: there are none, or they could not be renewed.
        """
        if self._of_environment is not None:
            return self._of_environment
        needs_io = self._found is None or getattr(self._found, "refresh_needed", bool)()
        return await anyio.to_thread.run_sync(self._read) if needs_io else self._read()

    def _read(self) -> AccessKey:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            key = self._credentials().get_frozen_credentials()
        except (BotoCoreError, ClientError, RuntimeError) as error:  # RuntimeError: the renewed credentials have expired too
            raise SigningFailed("no credentials") from error
        if not key.access_key or not key.secret_key:
            raise SigningFailed("no credentials")
        return AccessKey(_checked(key.access_key), key.secret_key, _checked(key.token or "") or None)

    def _credentials(self) -> "Credentials":
        with self._search:
            if self._found is None:
                self._found = self._session.get_credentials()
            if self._found is None:
                raise SigningFailed("no credentials")
            return self._found

    @cached_property
    def _session(self) -> "boto3.Session":
        import boto3
        from botocore.exceptions import BotoCoreError

        try:
            return boto3.Session()
        except BotoCoreError as error:
            raise SigningFailed("no such profile") from error


class Signer:
    """Sign requests to one service in one region."""

    def __init__(self, service: str, region: str | None = None) -> None:
        self._service = service
        self._region = region
        self._source = CredentialSource()
        self.clock_skew = 0.0
        """Seconds by which the clock of AWS is ahead of ours."""

    def prepare(self) -> None:
        """Read the environment now, instead of at the first request.

        Raises:
            SigningFailed: no region is configured.
        """
        self._source.prepare()

    @property
    def region(self) -> str:
        """Return the region of the constructor, or else of the environment or the profile.

        Raises:
            SigningFailed: no region is configured.
        """
        return self._region or self._source.region

    async def sign(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], keys: KeySource | None = None
    ) -> dict[str, str]:
        """Return the headers to add to a request. The path of ``url`` is percent-encoded once, and it has no query. ``headers``,
        in lower case, are signed too, so a proxy must not change them. ``keys`` are other credentials than those of this process.

        Raises:
            SigningFailed: credentials or the region are missing, or credentials could not be renewed.
        """
        key = await (keys or self._source).access_key()
        body_hash = await anyio.to_thread.run_sync(_hash, body) if len(body) > _LONG_BODY else _hash(body)
        now = _format_time(int(time.time() + self.clock_skew))
        host, path = _host_and_path(url)
        signed = {"host": host, "x-amz-date": now, **headers}
        if key.token:
            signed["x-amz-security-token"] = key.token
        names = sorted(signed)
        lines = "".join([f"{name}:{' '.join(signed[name].split())}\n" for name in names])
        signed_names = ";".join(names)
        request = f"{method}\n{path}\n\n{lines}\n{signed_names}\n{body_hash}"
        day, region = now[:8], self.region
        scope = f"{day}/{region}/{self._service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{_hash(request.encode())}"
        signature = hmac.digest(_signing_key(key.secret, day, region, self._service), text.encode(), "sha256").hex()
        authorization = f"AWS4-HMAC-SHA256 Credential={key.id}/{scope}, SignedHeaders={signed_names}, Signature={signature}"
        token = {"x-amz-security-token": key.token} if key.token else {}
        return {"x-amz-date": now, **token, "authorization": authorization}


def _checked(value: str) -> str:
    """Return ``value``, which becomes part of a header.

    Raises:
        SigningFailed: a line break in it would end the header, or the headers, and other characters have no place there.
    """
    if not (value.isascii() and (value.isprintable() or not value)):
        raise SigningFailed("the credentials or the region have a character that no header may have")
    return value


@lru_cache(maxsize=1)
def _format_time(seconds: int) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))


@lru_cache(maxsize=16)
def _host_and_path(url: str) -> tuple[str, str]:
    """Return the host of ``url`` as its header names it, and the path encoded a second time, as every service except S3 needs
    it."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].removesuffix({"https": ":443", "http": ":80"}[parts.scheme])
    return host, quote(parts.path or "/", safe="/-_.~")


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


@lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
