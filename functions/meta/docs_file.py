"""GET /docs/{file}: the script and the style sheet of the page."""

from starlette.responses import Response

from spass.web.http_function import lambda_handler
from spass.web.public_routing import public_router
from spass.web.swagger_ui import file as swagger_ui_file

router = public_router()


@router.get("/docs/{file}", include_in_schema=False)
async def docs_file(file: str) -> Response:
    return swagger_ui_file(file)


handler = lambda_handler(router)
