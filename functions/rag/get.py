"""GET /a1/rag/indices/{index_id}: what an index is."""

from dataclasses import asdict

from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import IndexParameter, api_router

router = api_router()


@router.get("/a1/rag/indices/{index_id}")
async def get_index(index_id: IndexParameter, exchange: CurrentExchange) -> Response:
    """An index's size, model and version."""
    return json_response(asdict(await exchange.services.catalog.describe(exchange.scope, index_id)))


handler = lambda_handler(router)
