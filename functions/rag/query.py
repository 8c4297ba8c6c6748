"""POST /a1/rag/indices/{index_id}/query: find the documents nearest to a text."""

from starlette.responses import Response

from spass.rag.index.documents import QueryRequest
from spass.rag.index.filters import parse_filter
from spass.rag.index.responses import QueryAnswer
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import run_idempotently
from spass.web.routing import IndexParameter, api_router

router = api_router()


@router.post("/a1/rag/indices/{index_id}/query", response_model=QueryAnswer)
async def query_index(index_id: IndexParameter, body: QueryRequest, exchange: CurrentExchange) -> Response:
    """Return the best `top_k` of the documents that match the filter, by exact cosine similarity, best first."""
    document_filter = parse_filter(body.filter) if body.filter else None
    await exchange.take_place("turns")
    return await run_idempotently(
        exchange,
        lambda _: exchange.services.reader.query(
            exchange.scope, index_id, body.query, body.top_k, filter=document_filter, min_score=body.min_score
        ),
    )


app = stream_app(router, warm_up=lambda services: (services.reader, services.read_keys()))
