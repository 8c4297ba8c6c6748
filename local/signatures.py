"""Verify the signatures (version 4) of requests to the emulated AWS.

(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html)
"""

import hashlib
import hmac
import re
import secrets
import time
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote

ALGORITHM: Final = "AWS4-HMAC-SHA256"
_CLOCK_SECONDS: Final = 300
_AUTHORIZATION: Final = re.compile(
    rf"{ALGORITHM} Credential=([A-Za-z0-9]+)/(\d{{8}})/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request, ?"
    r"SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})"
)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class BadSignature(Exception):
    """The request is not signed with the key of this start; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An access key of the emulated AWS: its id and its secret."""

    id: str
    secret: str


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The parts of a request that are signed. ``path`` and ``query`` are as sent. Names of ``headers`` are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Authorization:
    """The contents of the header ``Authorization``."""

    date: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str


def new_access_key() -> AccessKey:
    """Return a random access key. Its id is not an account number: the emulator would keep each account's resources apart."""
    return AccessKey(f"SPASS{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30))


def read_authorization(request: SignedRequest, key: AccessKey) -> Authorization:
    """Parse the header ``Authorization``, which must name the id of ``key``.

    Raises:
        BadSignature: it is missing or malformed, names another key, or does not sign every header that matters.
    """
    match = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
    if match is None:
        raise BadSignature("The request has no signature of version 4 in the header Authorization.")
    key_id, date, region, service, names, signature = match.groups()
    if not hmac.compare_digest(key_id, key.id):
        raise BadSignature("The access key is not the one of this start.")
    signed = tuple(names.split(";"))
    needed = {name for name in request.headers if name.startswith("x-amz-") or name in {"host", "content-type"}}
    if missing := {"host", "x-amz-date", *needed} - {*signed}:
        raise BadSignature(f"The signature does not cover these headers: {', '.join(sorted(missing))}.")
    return Authorization(date, region, service, signed, signature)


def verify(request: SignedRequest, authorization: Authorization, payload_hash: str, key: AccessKey) -> None:
    """Check the signature and the time of a request whose body has the SHA-256 ``payload_hash``, in hexadecimal.

    Raises:
        BadSignature: the signature is another one, or was made more than five minutes before or after now.
    """
    signed_at = request.headers.get("x-amz-date", "")
    _check_time(signed_at, authorization.date)
    canonical = "\n".join(
        [
            request.method,
            # Only S3 signs the path as it is sent. Other services encode it a second time.
            request.path if authorization.service == "s3" else quote(request.path, safe="/~"),
            _canonical_query(request.query),
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in authorization.signed_headers),
            "",
            ";".join(authorization.signed_headers),
            payload_hash,
        ]
    )
    scope = f"{authorization.date}/{authorization.region}/{authorization.service}/aws4_request"
    text = f"{ALGORITHM}\n{signed_at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    expected = sign(text, key, authorization.date, authorization.region, authorization.service)
    if not hmac.compare_digest(expected, authorization.signature):
        raise BadSignature("The signature does not match the request.")


def declared_hash(request: SignedRequest) -> str | None:
    """Return the hash of the body that the request declares in a signed header, or None if it declares none.

    Raises:
        BadSignature: the client did not hash its body.
    """
    declared = request.headers.get("x-amz-content-sha256")
    if declared is not None and not _SHA256.fullmatch(declared):
        raise BadSignature("The request must sign the SHA-256 of its body in x-amz-content-sha256.")
    return declared


def sign(text: str, key: AccessKey, date: str, region: str, service: str) -> str:
    """Return the signature of ``text`` in hexadecimal."""
    return hmac.new(_signing_key(key.secret, date, region, service), text.encode(), hashlib.sha256).hexdigest()


@lru_cache(maxsize=64)
def _signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    signing_key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        signing_key = hmac.new(signing_key, part.encode(), hashlib.sha256).digest()
    return signing_key


def _canonical_query(query: str) -> str:
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return "&".join(f"{name}={value}" for name, value in sorted((name, value) for name, _, value in pairs))


def _check_time(signed_at: str, date: str) -> None:
    try:
        moment = timegm(time.strptime(signed_at, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise BadSignature("The header x-amz-date is not a time such as 20260131T120000Z.") from None
    if not signed_at.startswith(date) or abs(time.time() - moment) > _CLOCK_SECONDS:
        raise BadSignature("The request was not signed within the last five minutes.")
