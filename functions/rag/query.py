"""POST /a1/rag/indices/{index_id}/query: the documents nearest to a text."""

from dataclasses import asdict

from starlette.responses import Response

from spass.aws.idempotency import Claim
from spass.rag.documents import QueryRequest
from spass.web.exchange import Current
from spass.web.functions import stream_app
from spass.web.idempotency import Answer, once
from spass.web.routing import Index, api_router

router = api_router()


@router.post("/a1/rag/indices/{index_id}/query")
async def query(index_id: Index, body: QueryRequest, exchange: Current) -> Response:
    """The best `top_k` documents by exact cosine similarity, best first."""

    async def found(_: Claim | None) -> Answer:
        return Answer(asdict(await exchange.services.rag.query(exchange.scope, index_id, body.query, body.top_k)))

    return await once(exchange, found)


app = stream_app(router, needs=lambda services: services.rag)
