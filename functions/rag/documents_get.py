"""GET /a1/rag/indices/{index_id}/documents/{doc_id}: return one document."""

from spass.rag.index.responses import Document
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import DocumentParameter, IndexParameter, api_router

router = api_router()


@router.get("/a1/rag/indices/{index_id}/documents/{doc_id}")
async def get_document(index_id: IndexParameter, doc_id: DocumentParameter, exchange: CurrentExchange) -> Document:
    """Return a document with its text and metadata."""
    return await exchange.services.reader.document(exchange.scope, index_id, doc_id)


handler = lambda_handler(router)
