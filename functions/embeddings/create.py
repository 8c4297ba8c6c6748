"""POST /v1/embeddings: one vector per text, as OpenAI's clients expect it."""

from starlette.responses import Response

from spass.completions.embeddings import EmbeddingsRequest
from spass.completions.responses import EmbeddingList
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import run_idempotently
from spass.web.routing import api_router

router = api_router()


@router.post("/v1/embeddings", response_model=EmbeddingList)
async def embed_texts(body: EmbeddingsRequest, exchange: CurrentExchange) -> Response:
    """Embed one or more texts: up to 256, or up to `limits.embedding_inputs` of gateway.yaml."""
    await exchange.take_place("turns")
    return await run_idempotently(exchange, lambda _: exchange.services.completions.embed(exchange.scope, body))


app = stream_app(router, warm_up=lambda services: (services.completions, services.read_keys(all_models=True)))
