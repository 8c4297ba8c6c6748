"""GET /ui/{asset}: a file of the page."""

from starlette.requests import Request
from starlette.responses import Response

from spass.web import page
from spass.web.http_function import lambda_handler
from spass.web.public_routing import bundled_file_router

router = bundled_file_router()


@router.get("/ui/{asset}", include_in_schema=False)
async def asset(request: Request, asset: str) -> Response:
    return page.asset(request, asset)


handler = lambda_handler(router)
