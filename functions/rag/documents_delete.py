"""DELETE /a1/rag/indices/{index_id}/documents/{doc_id}: delete one document."""

from spass.tenancy.response_model import Deletion
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import DocumentParameter, IndexParameter, api_router

router = api_router()


@router.delete("/a1/rag/indices/{index_id}/documents/{doc_id}")
async def delete_document(index_id: IndexParameter, doc_id: DocumentParameter, exchange: CurrentExchange) -> Deletion:
    """Delete a document. `deleted` is false if there was none."""
    return Deletion(deleted=await exchange.services.deleter.delete_document(exchange.scope, index_id, doc_id))


handler = lambda_handler(router)
