"""GET /a1/rag/indices/{index_id}/uploads/{upload_id}: return the progress of an upload."""

from spass.rag.ingest.uploads import Upload
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import IndexParameter, UploadParameter, api_router

router = api_router()


@router.get("/a1/rag/indices/{index_id}/uploads/{upload_id}")
async def get_upload(index_id: IndexParameter, upload_id: UploadParameter, exchange: CurrentExchange) -> Upload:
    """Return an upload's status, its progress, and the errors of its file."""
    return await exchange.services.uploads.get(exchange.scope, index_id, upload_id)


handler = lambda_handler(router)
