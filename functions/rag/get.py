"""GET /a1/rag/indices/{index_id}: describe an index."""

from spass.rag.index.catalog import describe_index
from spass.rag.index.responses import IndexSummary
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import IndexParameter, api_router

router = api_router()


@router.get("/a1/rag/indices/{index_id}")
async def get_index(index_id: IndexParameter, exchange: CurrentExchange) -> IndexSummary:
    """Return an index's size, model and version."""
    return await describe_index(exchange.scope, index_id)


handler = lambda_handler(router)
