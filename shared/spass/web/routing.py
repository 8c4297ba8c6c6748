"""Routes that identify the caller before they read the body and parse bodies strictly, and the parameters that routes share.

A request with several faults always gets the error of the first in this order: route, method, token, user, depth, admin's token,
names in the query, idempotency key, body.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, LiteralString

from fastapi import APIRouter, Depends, Path, Query
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, serialize_response
from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from spass.calls.scope import MAX_CALLER_DEPTH
from spass.core.errors import AdminRequired, AgentNotFound, InvalidRequest, JobNotFound, NotFound, SessionNotFound, UploadNotFound
from spass.core.ids import (
    AGENT_NAME,
    CLIENT_ID,
    DOCUMENT_ID,
    RAG_ID,
    AgentName,
    DocumentId,
    IndexId,
    JobId,
    SessionId,
    UploadId,
    id_pattern,
)
from spass.core.messages import Json
from spass.web.binding import BoundFunction
from spass.web.bodies import ARCHIVE_TYPE, FILE_TYPE, check_content_type, check_raw_body, parse_object, read_body
from spass.web.caller import acts_for_user, read_caller, reject_user_id
from spass.web.exchange import get_exchange
from spass.web.idempotency import applies_to, identify_request
from spass.web.public_routing import ANY_ERROR, ERROR, Handler, make_router
from spass.web.services import get_services

MAX_CURSOR: Final = 4096
_MAX_NAME_CHARACTERS: Final = 64  # of an unknown parameter, in an error
_MAX_REPORTED: Final = 20

_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    "default": ANY_ERROR,
    400: {"description": "A header, a parameter or the body is not valid.", **ERROR},
    401: {"description": "There is no token, or it is unknown.", **ERROR},
    508: {"description": f"The request came through {MAX_CALLER_DEPTH} gateways or more.", **ERROR},
}
"""The errors of every route with a caller, as OpenAPI describes them. ``default`` describes all other errors of a route."""


class _ParsedRequest(Request):
    """A request whose body was read and parsed before FastAPI gets it."""

    parsed: Json = None
    raw: bytes = b""

    async def body(self) -> bytes:
        return self.raw

    async def json(self) -> Json:
        return self.parsed


class CallerRoute(APIRoute):
    """A route with a caller. It adds the caller to the exchange.

    ``raw_type`` is the media type of a body that is bytes. None means a body in JSON, or no body.
    """

    admin_only: ClassVar[bool] = False
    raw_type: ClassVar[str | None] = None

    @cached_property
    def query_names(self) -> Sequence[str]:
        """Return the names that the route takes in the query."""
        return [*_query_names(self.dependant)]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request without FastAPI's exit stacks, which keep 3 KiB for each open stream and which no route uses."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # it raises the error
            return
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    @cached_property
    def _answer(self) -> Handler:
        return self.get_route_handler()

    def get_route_handler(self) -> Handler:
        function = BoundFunction(self.dependant)
        takes_body = self.body_field is not None
        body_required = self.body_field is not None and self.body_field.field_info.is_required()
        needs_user = acts_for_user(self.path)
        is_idempotent = "POST" in (self.methods or ()) and applies_to(self.path)

        async def answer(received: Request) -> Response:
            request = _ParsedRequest(received.scope, received.receive)
            exchange = get_exchange(request)
            exchange.route = self.path_format
            services = get_services(request)
            caller = read_caller(
                request.headers,
                request.query_params,
                tokens=services.tokens,
                request_id=exchange.request_id,
                route=self.path_format,
                needs_user=needs_user,
            )
            exchange.enter(services.scope(caller), services)
            if self.admin_only and not caller.identity.admin:
                raise AdminRequired("This route needs a token that gateway.yaml marks as admin.")
            if request.scope["query_string"]:
                _reject_unknown(request, self.query_names)
            request.raw = await read_body(request.stream(), request.headers.get("content-length"))
            if self.raw_type is not None:
                check_raw_body(request, self.raw_type)
            else:
                if takes_body:
                    request.raw, request.parsed = _parse_body(request.raw, request, required=body_required)
                if needs_user:
                    reject_user_id(request.parsed if takes_body else _parse_ignored_body(request.raw))
            if is_idempotent:
                exchange.idempotency = identify_request(request, caller, request.raw)
            return await self._respond(await function.call(request, request.parsed))

        return answer

    async def _respond(self, result: object) -> Response:
        """Return the response of a function that returned ``result``: a response, or the model of one."""
        if isinstance(result, Response):
            return result
        content = await serialize_response(field=self.response_field, response_content=result, dump_json=True)
        return Response(content, self.status_code or 200, media_type="application/json")


class AdminRoute(CallerRoute):
    """A route that needs an admin's token."""

    admin_only = True


class FileRoute(CallerRoute):
    """A route whose body is a file."""

    raw_type = FILE_TYPE


class ArchiveRoute(CallerRoute):
    """A route whose body is a zip archive."""

    raw_type = ARCHIVE_TYPE


def _query_names(dependant: Dependant) -> Iterator[str]:
    """Yield the names in the query that a route takes, itself or by what it depends on."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _query_names(dependency)


def _reject_unknown(request: Request, known: Sequence[str]) -> None:
    """Reject a query with names other than ``known``: a misspelt filter would have no effect. Raise InvalidRequest that names
    each of them."""
    if unknown := [name for name in request.query_params if name not in known]:
        takes = f"It takes: {', '.join(known)}." if known else "It takes none."
        errors: list[Json] = [
            {
                "loc": ["query", name[:_MAX_NAME_CHARACTERS]],
                "message": f'"{name[:_MAX_NAME_CHARACTERS]}" is not a parameter of this route. {takes}',
                "type": "extra_forbidden",
            }
            for name in unknown[:_MAX_REPORTED]
        ]
        excerpt = unknown[0][:_MAX_NAME_CHARACTERS]
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        message = f'"{excerpt}" is not a parameter of this route{more}. {takes}'
        raise InvalidRequest(message, param=excerpt, details={"errors": errors})


def _parse_body(raw: bytes, request: Request, *, required: bool) -> tuple[bytes, Json]:
    """Return the body as bytes and as JSON. A body that is empty and not ``required`` is None."""
    if not raw.strip() and not required:
        return b"", None
    check_content_type(request.headers.get("content-type"))
    return raw, parse_object(raw)


def _parse_ignored_body(raw: bytes) -> Json:
    """Return the JSON object in a body that the route does not take, or None if it is not an object."""
    try:
        return parse_object(raw) if raw else None
    except InvalidRequest:
        return None


def api_router(route_class: type[CallerRoute] = CallerRoute) -> APIRouter:
    """Return a router for routes with a caller. A body without a Content-Type counts as JSON."""
    return make_router(route_class, _RESPONSES)


def require_form(pattern: str, not_found: type[NotFound], message: str, param: str) -> AfterValidator:
    """Return a check that raises ``not_found`` for a malformed id. The gateway assigns these ids, so such an id cannot exist."""
    form = re.compile(pattern)

    def check(value: str) -> str:
        if not form.fullmatch(value):
            raise not_found(message, param=param)
        return value

    return AfterValidator(check)


AgentParameter = Annotated[
    AgentName,
    Path(description="An agent's name."),
    require_form(AGENT_NAME, AgentNotFound, "There is no such agent.", "name"),
]
SessionParameter = Annotated[
    SessionId,
    Path(description="A session's id."),
    require_form(id_pattern("ses"), SessionNotFound, "There is no such session.", "session_id"),
]
JobParameter = Annotated[
    JobId,
    Path(description="A job's id."),
    require_form(id_pattern("job"), JobNotFound, "There is no such job.", "job_id"),
]
UploadParameter = Annotated[
    UploadId,
    Path(description="An upload's id."),
    require_form(id_pattern("upl"), UploadNotFound, "There is no such upload.", "upload_id"),
]
# The caller chooses these ids, so a malformed one gets a 400.
IndexParameter = Annotated[IndexId, Path(pattern=RAG_ID, description="An index's id.")]
MessageIdParameter = Annotated[str, Path(pattern=CLIENT_ID, description="The `message_id` of a turn.")]
DocumentParameter = Annotated[DocumentId, Path(pattern=DOCUMENT_ID, max_length=128, description="A document's id.")]


def exact_form(form: re.Pattern[str], kind: LiteralString, message: LiteralString) -> BeforeValidator:
    """Return a check that rejects texts of another form, which pydantic may accept: as a number ``1.0``, ``+1`` and blanks, as a
    day a time at midnight and seconds since 1970."""

    def check(value: object) -> object:
        if isinstance(value, str) and not form.fullmatch(value):
            raise PydanticCustomError(kind, message)
        return value

    return BeforeValidator(check)


def reject_repeated(request: Request, names: Iterable[str]) -> None:
    """Reject a query that repeats a parameter. Raise InvalidRequest if the query holds one of ``names`` more than once."""
    for name in names:
        if len(request.query_params.getlist(name)) > 1:
            raise InvalidRequest(f"Send {name} only once.", param=name)


@dataclass(frozen=True, slots=True)
class PageParameters:
    """The part of a list that the client asks for: at most ``limit`` entries from ``cursor`` on."""

    limit: int
    cursor: str | None


_WHOLE_NUMBER: Final = exact_form(re.compile(r"[1-9][0-9]{0,3}"), "whole_number", "must be a whole number from 1 to 1000")


async def _page(
    request: Request,
    # The bounds come first. After the validator, pydantic would publish them as ``ge`` and ``le``, which are not OpenAPI.
    limit: Annotated[int, Query(ge=1, le=1000, description="Entries at most."), _WHOLE_NUMBER] = 100,
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR, description="`next_cursor` of the page before.")] = None,
) -> PageParameters:
    reject_repeated(request, ("limit", "cursor"))
    return PageParameters(limit, cursor or None)


Pagination = Annotated[PageParameters, Depends(_page)]
