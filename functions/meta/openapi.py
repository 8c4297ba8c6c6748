"""GET /openapi.json: the whole API, also where this function serves nothing else of it."""

from functools import cache
from importlib import import_module
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import public_router

DESCRIBED: Final = (
    "meta.health",
    "models.list",
    "chat.completions",
    "embeddings.create",
    "tools.list",
    "tools.execute",
    "agents.list",
    "agents.get",
    "agents.chat",
    "sessions.create",
    "sessions.list",
    "sessions.get",
    "sessions.delete",
    "sessions.history",
    "sessions.append",
    "rag.list",
    "rag.get",
    "rag.delete",
    "rag.replace",
    "rag.append",
    "rag.documents_list",
    "rag.documents_get",
    "rag.documents_delete",
    "rag.query",
)

router = public_router()


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    root: str = request.scope.get("root_path", "")
    return json_response({**_document(), "servers": [{"url": root or "/"}]})


@cache
def _document() -> dict[str, Any]:
    from spass.web.openapi import describe

    return describe(import_module(f"functions.{name}").router for name in DESCRIBED)


handler = lambda_handler(router)
