"""The tree of errors on the wire: which branch is which HTTP status, and the one envelope that every failure wears."""

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from spass.core import errors
from spass.core.errors import InvalidRequest, SpassError
from spass.core.ids import RequestId
from spass.core.messages import Json
from spass.web.json import json_response


class HttpKind(NamedTuple):
    """What HTTP and the OpenAI SDKs call a branch of the tree."""

    status: int
    type: str


KINDS: Final[Mapping[type[SpassError], HttpKind]] = {
    errors.InvalidInput: HttpKind(400, "invalid_request_error"),
    errors.Unauthenticated: HttpKind(401, "authentication_error"),
    errors.Forbidden: HttpKind(403, "permission_error"),
    errors.NotFound: HttpKind(404, "not_found_error"),
    errors.WrongMethod: HttpKind(405, "invalid_request_error"),
    errors.Conflict: HttpKind(409, "conflict_error"),
    errors.TooLarge: HttpKind(413, "invalid_request_error"),
    errors.Reused: HttpKind(422, "invalid_request_error"),
    errors.Limited: HttpKind(429, "rate_limit_error"),
    errors.Internal: HttpKind(500, "api_error"),
    errors.Upstream: HttpKind(502, "api_error"),
    errors.Unavailable: HttpKind(503, "api_error"),
    errors.TimedOut: HttpKind(504, "api_error"),
    errors.TooDeep: HttpKind(508, "invalid_request_error"),
}

# These always say when to come back, also where whoever raised them could not know.
_COME_BACK: Final = (
    errors.SessionBusy,
    errors.CompactionInProgress,
    errors.IdempotencyInProgress,
    errors.Limited,
    errors.StorageUnavailable,
)

_MAX_REPORTED: Final = 20
_MAX_LOC: Final = 64
_MAX_MESSAGE: Final = 300


def kind_of(error: SpassError) -> HttpKind:
    """The status and OpenAI type of ``error``: those of the branch it stands on."""
    return next((KINDS[branch] for branch in type(error).__mro__ if branch in KINDS), KINDS[errors.Internal])


def envelope(error: SpassError, request_id: RequestId) -> dict[str, Json]:
    """The body of every failure."""
    body: dict[str, Json] = {
        "code": error.code,
        "message": error.message,
        "type": kind_of(error).type,
        "param": error.param,
        "details": dict(error.details),
    }
    return {"error": body, "request_id": request_id}


def error_response(error: SpassError, request_id: RequestId, headers: Mapping[str, str] | None = None) -> Response:
    """The whole answer to a request that failed with ``error``."""
    extra = dict(headers or {})
    if isinstance(error, errors.Unauthenticated):
        extra["WWW-Authenticate"] = "Bearer"
    retry_after = error.retry_after
    if retry_after is None and isinstance(error, _COME_BACK):
        retry_after = 1.0
    if retry_after is not None:
        extra["Retry-After"] = str(max(1, math.ceil(retry_after)))
    return json_response(envelope(error, request_id), status=kind_of(error).status, headers=extra)


def from_validation(error: RequestValidationError) -> InvalidRequest:
    """What pydantic found, said in the envelope. Values are never shown, and long names are cut, so that a bad megabyte does not
    come back as one.
    """
    found = error.errors()
    reports = [_report(one) for one in found[:_MAX_REPORTED]]
    first = reports[0] if reports else None
    message = f"{_path(first['loc'])}: {first['message']}" if first else "The request is not valid."
    if len(found) > 1:
        message += f" (and {len(found) - 1} more)"
    param = _path(first["loc"]) if first else None
    return InvalidRequest(message, param=param, details={"errors": [*reports]})


class _Report(dict[str, Json]):
    """One entry of ``details.errors``: ``loc``, ``message``, ``type``."""


def _report(found: Mapping[str, object]) -> _Report:
    loc = found.get("loc", ())
    parts: list[Json] = [
        part if isinstance(part, int) else str(part)[:_MAX_LOC] for part in (loc if isinstance(loc, Iterable) else ())
    ]
    return _Report(loc=parts, message=str(found.get("msg", ""))[:_MAX_MESSAGE], type=str(found.get("type", "")))


def _path(loc: Json) -> str:
    """``("body", "documents", 3, "text")`` as ``documents.3.text``."""
    parts = [str(part) for part in loc] if isinstance(loc, list) else []
    named = parts[1:] if len(parts) > 1 and parts[0] in {"body", "query", "path", "header"} else parts
    return ".".join(named)


def from_http(error: HTTPException) -> SpassError:
    """What the framework refused on its own."""
    match error.status_code:
        case 404:
            return errors.RouteNotFound("There is no such route.")
        case 405:
            return errors.MethodNotAllowed("This route does not answer to this method.")
        case 413:
            return errors.PayloadTooLarge("The body is too large.")
        case status if status < 500:
            return InvalidRequest("The request could not be read.")
        case _:
            return errors.InternalError("Something went wrong on our side.")
