"""GET /a1/rag/indices: the tenant's indices."""

from dataclasses import asdict

from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/a1/rag/indices")
async def list_indices(page: Pagination, exchange: CurrentExchange) -> Response:
    """Every index of the tenant, by id."""
    return json_response(asdict(await exchange.services.catalog.list(exchange.scope, page.cursor, page.limit)))


handler = lambda_handler(router)
