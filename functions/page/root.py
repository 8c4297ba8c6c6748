"""GET /: go to the page."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spass.web.app import location
from spass.web.http_function import lambda_handler
from spass.web.page import HEADERS
from spass.web.public_routing import bundled_file_router

router = bundled_file_router()


@router.get("/", include_in_schema=False)
async def root(request: Request) -> Response:
    return RedirectResponse(location(request, "/ui"), 302, headers=HEADERS)


handler = lambda_handler(router)
