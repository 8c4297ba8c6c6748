"""GET /ui: the page in which people chat with agents."""

from starlette.requests import Request
from starlette.responses import Response

from spass.web import page
from spass.web.http_function import lambda_handler
from spass.web.public_routing import bundled_file_router

router = bundled_file_router()


@router.get("/ui", include_in_schema=False)
async def ui(request: Request) -> Response:
    return page.page(request)


handler = lambda_handler(router)
