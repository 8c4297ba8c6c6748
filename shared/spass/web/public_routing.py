"""Routes without a caller. This module imports neither what reads tokens nor what stores answers."""

import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from spass.web.exchange import get_exchange
from spass.web.startup import in_lambda

Handler = Callable[[Request], Coroutine[None, None, Response]]

ERROR: Final = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
ANY_ERROR: Final = {"description": "The one error envelope.", **ERROR}
"""An error as OpenAPI describes it."""


def header_parameter(name: str, description: str, pattern: str | None = None) -> dict[str, Any]:
    """Return an optional header as OpenAPI describes it."""
    schema = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


class PublicRoute(APIRoute):
    """A route without a caller."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            get_exchange(request).route = self.path
            return await handle(request)

        return answer


class BundledFileRoute(PublicRoute):
    """A public route that answers with a file of its function's bundle, and uses no services."""


def public_router() -> APIRouter:
    """Return a router for routes without a caller."""
    return make_router(PublicRoute, {"default": ANY_ERROR})


def bundled_file_router() -> APIRouter:
    """Return a router for routes that answer with files of the bundle. Their function starts without services."""
    return make_router(BundledFileRoute, {"default": ANY_ERROR})


def make_router(route_class: type[APIRoute], responses: dict[int | str, dict[str, Any]]) -> APIRouter:
    """Return a router for routes of this class. ``responses`` are what OpenAPI describes for each of them."""
    if in_lambda():
        # FastAPI imports all of pydantic.v1, 23 modules, only to recognise models of pydantic 1. None makes that import fail, and
        # FastAPI then treats every model as a model of pydantic 2.
        sys.modules.setdefault("pydantic.v1", None)  # type: ignore[arg-type]
    return APIRouter(route_class=route_class, strict_content_type=False, responses=responses)
