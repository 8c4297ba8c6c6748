"""GET /openapi.json: the description of the whole API, not only of this function."""

from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from spass.web.bodies import json_response
from spass.web.http_function import import_routers, lambda_handler
from spass.web.public_routing import public_router

router = public_router()


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    root: str = request.scope.get("root_path", "")
    return json_response({**document(), "servers": [{"url": root or "/"}]})


@cache
def document() -> dict[str, Any]:
    from spass.web.openapi import openapi_document

    folder = Path(__file__).parents[1]
    files = sorted(file for file in folder.glob("*/*.py") if file.parent.name != "workers")
    return openapi_document(import_routers(f"functions.{file.parent.name}.{file.stem}" for file in files))


handler = lambda_handler(router)
