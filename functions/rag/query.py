"""POST /a1/rag/indices/{index_id}/query: the documents nearest to a text."""

from dataclasses import asdict

from starlette.responses import Response

from spass.aws.idempotency import Claim
from spass.rag.documents import QueryRequest
from spass.rag.filters import parse_filter
from spass.web.exchange import Current
from spass.web.functions import stream_app
from spass.web.idempotency import Answer, once
from spass.web.routing import Index, api_router

router = api_router()


@router.post("/a1/rag/indices/{index_id}/query")
async def query_index(index_id: Index, body: QueryRequest, exchange: Current) -> Response:
    """The best `top_k` documents by exact cosine similarity, best first, of those that match the filter."""
    wanted = parse_filter(body.filter) if body.filter else None

    async def found(_: Claim | None) -> Answer:
        query = exchange.services.rag.query
        answer = await query(exchange.scope, index_id, body.query, body.top_k, filter=wanted, min_score=body.min_score)
        return Answer(asdict(answer))

    return await once(exchange, found)


app = stream_app(router, needs=lambda services: (services.rag, services.read_keys()))
