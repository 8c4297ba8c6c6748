"""GET /docs: Swagger UI for the API."""

from starlette.requests import Request
from starlette.responses import Response

from spass.web.app import TITLE, location
from spass.web.http_function import lambda_handler
from spass.web.public_routing import public_router
from spass.web.swagger_ui import page

router = public_router()


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return page(title=TITLE, openapi=location(request, "/openapi.json"), docs=location(request, "/docs"))


handler = lambda_handler(router)
