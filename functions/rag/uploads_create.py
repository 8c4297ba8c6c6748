"""POST /a1/rag/indices/{index_id}/uploads: create a presigned form for a file to ingest."""

from starlette.responses import Response

from spass.rag.index.documents import UploadRequest
from spass.rag.ingest.uploads import UploadTicket
from spass.store.idempotency import Claim
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.routing import IndexParameter, api_router

router = api_router()


@router.post("/a1/rag/indices/{index_id}/uploads", response_model=UploadTicket)
async def create_upload(index_id: IndexParameter, body: UploadRequest, exchange: CurrentExchange) -> Response:
    """Create a presigned form. Send its `fields` and then the file, as a form, to its `url`. The file's documents are appended
    to the index, which is created if it does not exist."""

    async def create(claim: Claim | None) -> RouteResult:
        ticket = await exchange.services.uploads.create(
            exchange.scope, index_id, body.filename, body.content_type, body.size, claim
        )
        return RouteResult(ticket, is_stored=True)

    return await run_idempotently(exchange, create)


handler = lambda_handler(router)
