"""GET /a1/rag/indices: list the indices of the tenant."""

from spass.rag.index.catalog import read_indices
from spass.rag.index.responses import IndexPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/a1/rag/indices")
async def list_indices(page: Pagination, exchange: CurrentExchange) -> IndexPage:
    """List the indices of the tenant, ordered by id."""
    return await read_indices(exchange.scope, page.cursor, page.limit)


handler = lambda_handler(router)
