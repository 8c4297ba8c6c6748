"""GET /a1/rag/indices/{index_id}/uploads: list the uploads into an index."""

from spass.rag.ingest.uploads import UploadPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import IndexParameter, Pagination, api_router

router = api_router()


@router.get("/a1/rag/indices/{index_id}/uploads")
async def list_uploads(index_id: IndexParameter, page: Pagination, exchange: CurrentExchange) -> UploadPage:
    """List the uploads of an index: first those with a form, the newest first, then all others."""
    return await exchange.services.uploads.list(exchange.scope, index_id, page.cursor, page.limit)


handler = lambda_handler(router)
