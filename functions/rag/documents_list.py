"""GET /a1/rag/indices/{index_id}/documents: what an index holds."""

from dataclasses import asdict

from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import IndexParameter, Pagination, api_router

router = api_router()


@router.get("/a1/rag/indices/{index_id}/documents")
async def list_documents(index_id: IndexParameter, page: Pagination, exchange: CurrentExchange) -> Response:
    """An index's documents, by id."""
    return json_response(asdict(await exchange.services.rag.documents(exchange.scope, index_id, page.cursor, page.limit)))


handler = lambda_handler(router)
