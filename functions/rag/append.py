"""POST /a1/rag/indices/{index_id}/documents/append: add documents to an index."""

from starlette.responses import Response

from spass.rag.index.documents import WriteRequest
from spass.rag.index.responses import WriteAnswer
from spass.store.idempotency import Claim, Completion
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.routing import IndexParameter, api_router

router = api_router()


@router.post("/a1/rag/indices/{index_id}/documents/append", response_model=WriteAnswer)
async def append_documents(index_id: IndexParameter, body: WriteRequest, exchange: CurrentExchange) -> Response:
    """Add documents and replace those with the same ids. The index is created if it does not exist."""

    async def write(claim: Claim | None) -> RouteResult:
        writer = exchange.services.writer
        completion = Completion(claim, WriteAnswer.to_dict, exchange.cost_headers) if claim else None
        answer = await writer.append(exchange.scope, index_id, body.documents, completion)
        return RouteResult(answer, is_stored=True)

    await exchange.take_place("turns")
    return await run_idempotently(exchange, write)


app = stream_app(router, warm_up=lambda services: (services.writer, services.read_keys()))
