"""GET /docs: the API as a page to read and try. (The page loads Swagger UI from its public CDN.)"""

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response

from spass.web.app import TITLE, location
from spass.web.functions import lambda_handler
from spass.web.routing import public_router

router = public_router()


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return get_swagger_ui_html(openapi_url=location(request, "/openapi.json"), title=TITLE)


handler = lambda_handler(router)
