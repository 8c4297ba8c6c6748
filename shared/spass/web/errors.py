"""Errors as HTTP answers: the status of each branch of the error tree, and the one envelope of all errors."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Final, NamedTuple

from fastapi.exceptions import RequestValidationError
from pydantic import WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.responses import Response

from spass.core import errors
from spass.core.errors import InvalidRequest, SpassError
from spass.core.ids import RequestId
from spass.core.messages import Json
from spass.redaction.text import redact, redact_members
from spass.tenancy.response_model import ResponseModel
from spass.tenancy.validation_messages import explain_error, field_path, path_within
from spass.web.bodies import json_response

_REPORT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
        "message": {"type": "string"},
        "type": {"type": "string"},
    },
    "required": ["loc", "message", "type"],
    "additionalProperties": False,
}
_DETAILS_SCHEMA: Final = {"type": "object", "properties": {"errors": {"type": "array", "items": _REPORT_SCHEMA}}}


class ErrorBody(ResponseModel):
    """The error of a request. `details` depends on the code; after a failed validation, `details.errors` says where."""

    code: str
    message: str
    type: str
    param: str | None
    details: Annotated[dict[str, Any], WithJsonSchema(_DETAILS_SCHEMA)]


class Error(ResponseModel):
    """The one envelope of all errors."""

    error: ErrorBody
    request_id: str


class HttpErrorType(NamedTuple):
    """The HTTP status of a branch of the error tree, and its type in the OpenAI SDKs."""

    status: int
    type: str


HTTP_ERROR_TYPES: Final[Mapping[type[SpassError], HttpErrorType]] = {
    errors.InvalidInput: HttpErrorType(400, "invalid_request_error"),
    errors.Unauthenticated: HttpErrorType(401, "authentication_error"),
    errors.Forbidden: HttpErrorType(403, "permission_error"),
    errors.NotFound: HttpErrorType(404, "not_found_error"),
    errors.WrongMethod: HttpErrorType(405, "invalid_request_error"),
    errors.Conflict: HttpErrorType(409, "conflict_error"),
    errors.TooLarge: HttpErrorType(413, "invalid_request_error"),
    errors.KeyMismatch: HttpErrorType(422, "invalid_request_error"),
    errors.LimitExceeded: HttpErrorType(429, "rate_limit_error"),
    errors.Internal: HttpErrorType(500, "api_error"),
    errors.Upstream: HttpErrorType(502, "api_error"),
    errors.Unavailable: HttpErrorType(503, "api_error"),
    errors.DeadlineExceeded: HttpErrorType(504, "api_error"),
    errors.DepthExceeded: HttpErrorType(508, "invalid_request_error"),
}

# These answers always have Retry-After, even when the error does not give a time.
_RETRY_LATER: Final = (
    errors.SessionBusy,
    errors.CompactionInProgress,
    errors.IdempotencyInProgress,
    errors.LimitExceeded,
    errors.StorageUnavailable,
)

# OpenAI's SDKs retry after every 5xx unless the header x-should-retry is false. Here no retry can help.
_NEVER_RETRY: Final = (errors.NoBackendAvailable, errors.DepthExceeded)

# Their texts hold nothing but what the caller sent or may list. Paths in a workspace look like files of the gateway.
_NAME_PATHS: Final = (
    errors.InvalidPath,
    errors.InvalidArchive,
    errors.WorkspaceLimit,
    errors.WorkspaceFileNotFound,
    errors.WorkspaceConflict,
)

_MAX_REPORTS: Final = 20
_MAX_LOC_CHARACTERS: Final = 64
_MAX_MESSAGE_CHARACTERS: Final = 300


def http_error_type(error: SpassError) -> HttpErrorType:
    """Return the status and the OpenAI type of the branch of ``error``."""
    return next(
        (HTTP_ERROR_TYPES[branch] for branch in type(error).__mro__ if branch in HTTP_ERROR_TYPES),
        HTTP_ERROR_TYPES[errors.Internal],
    )


def envelope(
    error: SpassError, request_id: RequestId, redact: Callable[[str], str] = redact, query_names: Collection[str] = ()
) -> Error:
    """Return the body of the answer. ``redact`` removes secrets from its texts, except where they name paths of a workspace.
    ``query_names`` are the parameters that the route takes in the query."""
    if isinstance(error, _NAME_PATHS):
        redact = str
    details = redact_members(error.details, redact)
    message = redact(error.message)
    if isinstance(error, InvalidRequest) and "errors" not in details:
        details["errors"] = [_build_single_report(error, message, redact, query_names)]
    body = ErrorBody(
        code=error.code,
        message=message,
        type=http_error_type(error).type,
        param=error.param and redact(error.param),
        details=details,
    )
    return Error(error=body, request_id=request_id)


def _build_single_report(
    error: InvalidRequest, message: str, redact: Callable[[str], str], query_names: Collection[str]
) -> dict[str, Json]:
    """Return the entry of ``details.errors`` for an error that validation did not find."""
    param = error.param
    if param is None:
        loc: list[Json] = ["body"]
    elif param[:1].isupper():
        loc = ["header", param]
    elif param in query_names:
        loc = ["query", param]
    else:
        loc = ["body", *(int(part) if part.isdecimal() else part for part in param.split("."))]
    return {"loc": [redact(part) if isinstance(part, str) else part for part in loc], "message": message, "type": error.code}


def error_response(
    error: SpassError,
    request_id: RequestId,
    headers: Mapping[str, str] | None = None,
    *,
    redact: Callable[[str], str] = redact,
    query_names: Collection[str] = (),
) -> Response:
    """Return the whole answer to a request that failed with ``error``. ``query_names`` are the parameters that its route takes in
    the query."""
    extra = dict(headers or {})
    if isinstance(error, errors.Unauthenticated):
        extra["WWW-Authenticate"] = "Bearer"
    if isinstance(error, _NEVER_RETRY):
        extra["x-should-retry"] = "false"
    retry_after = error.retry_after
    if retry_after is None and isinstance(error, _RETRY_LATER):
        retry_after = 1.0
    if retry_after is not None:
        extra["Retry-After"] = str(max(1, math.ceil(retry_after)))
    return json_response(envelope(error, request_id, redact, query_names), status=http_error_type(error).status, headers=extra)


def from_validation(error: RequestValidationError) -> InvalidRequest:
    """Return pydantic's errors as one ``InvalidRequest``. Omit values and cut long names, so that the answer stays small."""
    problems = error.errors()
    reports = [_build_report(problem, error.body) for problem in problems[:_MAX_REPORTS]]
    if not reports:
        return InvalidRequest("The request is not valid.")
    loc, message = reports[0]["loc"], str(reports[0]["message"])
    path = loc[1:] if isinstance(loc, list) else []
    if path:
        message = f"{field_path(path)}: {message}"
    if len(problems) > 1:
        message += f" (and {len(problems) - 1} more)"
    return InvalidRequest(message, param=".".join(map(str, path)) if path else None, details={"errors": [*reports]})


def _build_report(problem: Mapping[str, Any], body: object) -> dict[str, Json]:
    kind = str(problem["type"])
    loc = tuple(problem["loc"])
    message = explain_error(kind, str(problem["msg"]))
    if loc[0] == "body":
        loc = ("body", *path_within(body, loc[1:], missing=kind == "missing"))
    if kind in {"union_tag_invalid", "union_tag_not_found"}:  # pydantic's message contains the value
        context = problem["ctx"]
        loc = (*loc, str(context["discriminator"]).strip("'"))
        message = f"must be one of {context['expected_tags']}" if "expected_tags" in context else explain_error("missing", "")
    parts: list[Json] = [part if isinstance(part, int) else str(part)[:_MAX_LOC_CHARACTERS] for part in loc]
    return {"loc": parts, "message": message[:_MAX_MESSAGE_CHARACTERS], "type": kind}


def route_not_found() -> errors.RouteNotFound:
    """Return the error for a path that no route has. API Gateway answers in the same words (``infra/routes.py``)."""
    return errors.RouteNotFound(
        "There is no such route. GET /docs lists all routes. Most begin with /v1/, /a1/ or /c1/, and "
        "no path has an empty segment (//)."
    )


def from_http(error: HTTPException) -> SpassError:
    """Return the error for a request that the framework refused."""
    if error.status_code == 404:
        return route_not_found()
    return InvalidRequest("The request cannot be read.") if error.status_code < 500 else errors.internal_error(error)
