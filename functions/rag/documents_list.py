"""GET /a1/rag/indices/{index_id}/documents: the documents of an index."""

from spass.rag.index.responses import DocumentPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import IndexParameter, Pagination, api_router

router = api_router()


@router.get("/a1/rag/indices/{index_id}/documents")
async def list_documents(index_id: IndexParameter, page: Pagination, exchange: CurrentExchange) -> DocumentPage:
    """List an index's documents, ordered by id."""
    return await exchange.services.reader.documents(exchange.scope, index_id, page.cursor, page.limit)


handler = lambda_handler(router)
