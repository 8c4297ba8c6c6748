"""The description of the whole API, as OpenAPI 3.1."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from spass.calls.scope import MAX_CALLER_DEPTH
from spass.web.answers import BODIES, SCHEMAS, SUCCESSES
from spass.web.app import TITLE
from spass.web.routing import CallerRoute

_DESCRIPTION: Final = (
    "One endpoint for the LLM agents of many tenants: OpenAI's protocol under `/v1`, agents, sessions and retrieval under `/a1`. "
    "Send `Authorization: Bearer <token>` with a token of your tenant; under `/a1`, send the user in `SPASS-User-Id` too."
)
_TAGS: Final = ("health", "models", "chat", "embeddings", "tools", "tenant", "usage", "audit", "agents", "jobs", "rag")
VERSION: Final = "0.1.0"

_ERROR_RESPONSE: Final = {
    "description": "The one error envelope.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_ERROR_DESCRIPTIONS: Final = {
    "400": "A header, a parameter or the body is not valid.",
    "401": "There is no token, or it is unknown.",
    "508": f"The request came through {MAX_CALLER_DEPTH} gateways or more.",
}
"""Status to description of the errors that every route with a caller can answer. ``default`` covers the others."""
_USER: Final = {
    "name": "SPASS-User-Id",
    "in": "header",
    "description": "The user for whom the caller acts.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._@:+-]{1,128}$"},
}
_COMMON_HEADERS: Final = (
    {
        "name": "SPASS-Caller-Depth",
        "in": "header",
        "required": False,
        "description": "How many sub-calls of gateways led to this request.",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_CALLER_DEPTH - 1},
    },
    {
        "name": "SPASS-Parent-Request-Id",
        "in": "header",
        "required": False,
        "description": "The request that this one is a sub-call of.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
    },
)
_IDEMPOTENCY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key with the same body is carried out once and answered again for 24 hours.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}
_PREFER: Final = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async`: do not wait, answer 202 at once (RFC 7240).",
    "schema": {"type": "string"},
}
_AUGMENT: Final = {
    "name": "SPASS-Augment",
    "in": "header",
    "required": False,
    "description": "Switches off what the gateway adds: `server-tools=off, system-prompt=off, memory=off`, any of them.",
    "schema": {"type": "string"},
}


def openapi_document(routers: Iterable[APIRouter]) -> dict[str, Any]:
    """The document for all routes of ``routers``."""
    routes = [route for router in routers for route in router.routes]
    document = get_openapi(title=TITLE, version=VERSION, description=_DESCRIPTION, routes=routes)
    document["tags"] = [{"name": tag} for tag in _TAGS]
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas |= SCHEMAS
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for route, method, operation in _operations(document, routes):
        _add_answers(route.path_format, method, operation)
        _refuse_null(operation)
        if name := BODIES.get((method, route.path)):
            operation["requestBody"]["content"]["application/json"]["schema"] = {"$ref": f"#/components/schemas/{name}"}
        if isinstance(route, CallerRoute):
            _add_caller(route.path, method, operation)
        else:
            operation["tags"] = ["health"]
    return document


def _operations(document: Mapping[str, Any], routes: Sequence[BaseRoute]) -> Iterable[tuple[APIRoute, str, dict[str, Any]]]:
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                yield route, method, document["paths"][route.path_format][method.lower()]


def _refuse_null(operation: dict[str, Any]) -> None:
    """Take ``null`` out of the schemas of parameters and of the body: FastAPI adds it where they may be absent."""
    bodies = operation.get("requestBody", {}).get("content", {}).values()
    for holder in [*operation.get("parameters", ()), *bodies]:
        schema = holder["schema"]
        members = [member for member in schema.get("anyOf", ()) if member != {"type": "null"}]
        if len(members) == 1:
            rest = {} if "$ref" in members[0] else {name: value for name, value in schema.items() if name != "anyOf"}
            holder["schema"] = {**rest, **members[0]}


def _add_answers(path: str, method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    for status, name in SUCCESSES[method, path].items():
        content = responses[status].setdefault("content", {})
        content["application/json"] = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    responses["default"] = _ERROR_RESPONSE


def _add_caller(path: str, method: str, operation: dict[str, Any]) -> None:
    operation["security"] = [{"token": []}]
    operation["responses"] |= {status: {**_ERROR_RESPONSE, "description": said} for status, said in _ERROR_DESCRIPTIONS.items()}
    parameters = operation.setdefault("parameters", [])
    parameters += [{**_USER, "required": path.startswith("/a1/")}, *_COMMON_HEADERS]
    if method == "POST":
        parameters.append(_IDEMPOTENCY)
    if path == "/v1/chat/completions":
        parameters.append(_AUGMENT)
    if path.endswith("/compact"):
        parameters.append(_PREFER)
    operation["tags"] = [path.split("/")[2]]
