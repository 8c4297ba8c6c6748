"""The description of the whole API, as OpenAPI 3.1."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from spass.web import caller, idempotency
from spass.web.app import TITLE
from spass.web.errors import Error
from spass.web.routing import CallerRoute

_DESCRIPTION: Final = (
    "One endpoint for the LLM agents of many tenants: OpenAI's protocol under `/v1`, agents, sessions and retrieval under `/a1`, "
    "chats under `/c1`. Send `Authorization: Bearer <token>` with a token of your tenant; under `/a1` and `/c1`, send the user "
    "in `SPASS-User-Id` too."
)
_TAGS: Final = (
    "health",
    "models",
    "chat",
    "embeddings",
    "ask",
    "kinds",
    "tools",
    "tenant",
    "usage",
    "audit",
    "agents",
    "jobs",
    "approvals",
    "operators",
    "managed-agents",
    "workspaces",
    "rag",
)
VERSION: Final = "0.1.0"


def openapi_document(routers: Iterable[APIRouter]) -> dict[str, Any]:
    """Return the document for all routes of ``routers``.

    FastAPI writes the document from the routes. Add what FastAPI cannot know: the headers that ``CallerRoute`` reads before
    FastAPI gets the request, and the errors of ``create_app``.
    """
    routes = [route for router in routers for route in router.routes]
    document = get_openapi(title=TITLE, version=VERSION, description=_DESCRIPTION, routes=routes)
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    error = Error.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
    document["components"]["schemas"] |= {**error.pop("$defs"), Error.__name__: error}
    for route, method, operation in _operations(document, routes):
        _remove_null(operation)
        _remove_stream_schema(operation)
        if isinstance(route, CallerRoute):
            _add_caller(route.path, method, operation)
            if route.raw_type is not None:
                schema = {"type": "string", "format": "binary"}
                operation["requestBody"] = {"required": True, "content": {route.raw_type: {"schema": schema}}}
        else:
            operation["tags"] = ["health"]
    used = (tag for _, _, operation in _operations(document, routes) for tag in operation["tags"])
    document["tags"] = [{"name": tag} for tag in dict.fromkeys((*_TAGS, *used))]
    return document


def _operations(document: Mapping[str, Any], routes: Sequence[BaseRoute]) -> Iterable[tuple[APIRoute, str, dict[str, Any]]]:
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                yield route, method, document["paths"][route.path_format][method.lower()]


def _remove_null(operation: dict[str, Any]) -> None:
    """Remove ``null`` from the schemas of parameters and bodies. FastAPI adds it to the optional ones."""
    bodies = operation.get("requestBody", {}).get("content", {}).values()
    for holder in [*operation.get("parameters", ()), *bodies]:
        schema = holder["schema"]
        members = [member for member in schema.get("anyOf", ()) if member != {"type": "null"}]
        if len(members) == 1:
            other_keys = {} if "$ref" in members[0] else {name: value for name, value in schema.items() if name != "anyOf"}
            holder["schema"] = {**other_keys, **members[0]}


def _remove_stream_schema(operation: Mapping[str, Any]) -> None:
    """Remove FastAPI's schema of a stream of events, a text. Clients read the schema of a stream as that of each event."""
    for response in operation["responses"].values():
        if "text/event-stream" in response.get("content", {}):
            response["content"]["text/event-stream"] = {}


def _add_caller(path: str, method: str, operation: dict[str, Any]) -> None:
    operation["security"] = [{"token": []}]
    operation["tags"] = [path.split("/")[2]]
    headers = [
        *caller.describe_headers(path),
        *([idempotency.HEADER] if method == "POST" and idempotency.applies_to(path) else []),
    ]
    parameters = ({"in": "header", "required": False, **header} for header in headers)
    operation["parameters"] = [*operation.get("parameters", ()), *parameters]
