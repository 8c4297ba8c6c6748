"""The caller of a request: its token, user, depth and parent, read from the headers."""

import re
from collections.abc import Sequence
from typing import Any, Final

from starlette.datastructures import Headers, QueryParams

from spass.calls.scope import MAX_CALLER_DEPTH
from spass.completions.augment import Augment
from spass.core.errors import (
    InvalidAugment,
    InvalidRequest,
    InvalidToken,
    MissingToken,
    RecursionDepthExceeded,
    UserIdInvalid,
    UserIdNotAllowed,
    UserIdRequired,
)
from spass.core.ids import RequestId, UserId
from spass.redaction.patterns import CREDENTIAL
from spass.tenancy.identity import Caller, Identity, Tokens
from spass.web.public_routing import header_parameter

_USER_ID: Final = re.compile(r"[A-Za-z0-9._@:+-]{1,128}")
_DEPTH: Final = re.compile(r"[0-9]{1,4000}")
_PARENT: Final = re.compile(r"[!-~]{1,128}")
_AUGMENT_KEYS: Final = ("server-tools", "system-prompt", "memory")
_USER_ROUTES: Final = ("/a1/", "/c1/")

AUGMENT_HEADER: Final = header_parameter(
    "SPASS-Augment", "Switches off what the gateway adds: `server-tools=off, system-prompt=off, memory=off`, any of them."
)


def acts_for_user(path: str) -> bool:
    """Return True for the routes that need a user."""
    return path.startswith(_USER_ROUTES)


def describe_headers(path: str) -> Sequence[dict[str, Any]]:
    """Return the headers that ``read_caller`` reads on the route at ``path``, as OpenAPI describes them."""
    return (
        {
            "name": "SPASS-User-Id",
            "required": acts_for_user(path),
            "description": "The user for whom the caller acts.",
            "schema": {"type": "string", "pattern": f"^{_USER_ID.pattern}$"},
        },
        {
            "name": "SPASS-Caller-Depth",
            "description": "How many sub-calls of gateways led to this request.",
            "schema": {"type": "integer", "minimum": 0, "maximum": MAX_CALLER_DEPTH - 1},
        },
        {
            "name": "SPASS-Parent-Request-Id",
            "description": "The request that this one is a sub-call of.",
            "schema": {"type": "string", "pattern": f"^{_PARENT.pattern}$"},
        },
    )


def read_caller(
    headers: Headers, query: QueryParams, *, tokens: Tokens, request_id: RequestId, route: str, needs_user: bool
) -> Caller:
    """Return the caller of one request. ``needs_user`` is True on the routes that act for a user.

    Check token, user, depth and parent in this order, so that a request with several faults always gets the same error.
    User and parent are stored and logged, so reject a token or a key that a client put into the wrong header.

    Raises:
        MissingToken, InvalidToken: the token is missing or unknown.
        UserIdRequired, UserIdInvalid, UserIdNotAllowed: the user is missing, malformed or named in the query.
        InvalidRequest: a header is malformed.
        RecursionDepthExceeded: too many sub-calls led to this request.
    """
    # Python evaluates the arguments in this order.
    return Caller(
        identity=_read_identity(headers, tokens),
        user=_read_user(headers, query, tokens, needs_user=needs_user),
        depth=_read_depth(headers),
        parent_request_id=_read_parent(headers, tokens),
        request_id=request_id,
        route=route,
    )


def reject_user_id(names: object) -> None:
    """Reject ``user_id`` in ``names`` (a body or a query). Only the header names the user. Raise UserIdNotAllowed if ``names``
    holds ``user_id``."""
    if isinstance(names, dict | QueryParams) and "user_id" in names:
        raise UserIdNotAllowed("Name the user in the header SPASS-User-Id, not as user_id.", param="user_id")


def _read_identity(headers: Headers, tokens: Tokens) -> Identity:
    values = headers.getlist("authorization")
    if len(values) > 1:
        raise InvalidToken("Send the Authorization header only once.", param="Authorization")
    scheme, _, token = (values[0] if values else "").strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise MissingToken("Send the header Authorization: Bearer <token>.", param="Authorization")
    return tokens.identify(token)


def _read_user(headers: Headers, query: QueryParams, tokens: Tokens, *, needs_user: bool) -> UserId | None:
    values = headers.getlist("spass-user-id")
    if not values or values == [""]:
        if needs_user:
            raise UserIdRequired("Send the header SPASS-User-Id.", param="SPASS-User-Id")
        if values:
            raise UserIdInvalid("SPASS-User-Id is empty. Name a user or omit the header.", param="SPASS-User-Id")
        return None
    if len(values) > 1 or not _USER_ID.fullmatch(values[0]):
        raise UserIdInvalid(
            "Send SPASS-User-Id once, with 1 to 128 characters of A–Z a–z 0–9 . _ @ : + -.", param="SPASS-User-Id"
        )
    if _is_secret(values[0], tokens):
        raise UserIdInvalid("SPASS-User-Id is a token or a key. Send the name of a user.", param="SPASS-User-Id")
    if needs_user:
        reject_user_id(query)
    return UserId(values[0])


def _read_depth(headers: Headers) -> int:
    value = _read_single(headers, "SPASS-Caller-Depth", _DEPTH, "a whole number from 0 on")
    depth = int(value or "0")
    if depth >= MAX_CALLER_DEPTH:
        raise RecursionDepthExceeded(
            f"The SPASS-Caller-Depth of a request may be at most {MAX_CALLER_DEPTH - 1}; this request has more.",
            details={"depth": min(depth, 10**6)},
        )
    return depth


def _read_parent(headers: Headers, tokens: Tokens) -> RequestId | None:
    value = _read_single(headers, "SPASS-Parent-Request-Id", _PARENT, "1 to 128 visible ASCII characters")
    if value is None:
        return None
    if _is_secret(value, tokens):
        message = "SPASS-Parent-Request-Id is a token or a key. Send the id of a request."
        raise InvalidRequest(message, param="SPASS-Parent-Request-Id")
    return RequestId(value)


def _is_secret(value: str, tokens: Tokens) -> bool:
    return value in tokens or CREDENTIAL.search(value) is not None


def _read_single(headers: Headers, name: str, form: re.Pattern[str], what: str) -> str | None:
    values = headers.getlist(name)
    if not values:
        return None
    if len(values) > 1 or not form.fullmatch(values[0]):
        raise InvalidRequest(f"Send {name} once, as {what}.", param=name)
    return values[0]


def parse_augment(headers: Headers) -> Augment:
    """Parse the header ``SPASS-Augment``: any of ``server-tools=off``, ``system-prompt=off`` and ``memory=off``. Raise
    InvalidAugment if a key or a value is unknown."""
    off: set[str] = set()
    for part in ",".join(headers.getlist("spass-augment")).split(","):
        key, _, value = part.strip().lower().partition("=")
        if not key and not value:
            continue
        if key.strip() not in _AUGMENT_KEYS or value.strip() != "off":
            raise InvalidAugment(
                f"SPASS-Augment accepts only {', '.join(f'{known}=off' for known in _AUGMENT_KEYS)}.", param="SPASS-Augment"
            )
        off.add(key.strip())
    return Augment("server-tools" not in off, "system-prompt" not in off, "memory" not in off)
