"""POST /v1/chat/completions: OpenAI's chat, blocking and streaming."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.render.chunks import replay_chunks
from spass.completions.answer import AnswerBuilder
from spass.completions.chat_request import ChatCompletionRequest
from spass.completions.responses import ChatCompletion
from spass.web.caller import AUGMENT_HEADER, parse_augment
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import run_idempotently, stream_idempotently
from spass.web.routing import api_router
from spass.web.services import Services
from spass.web.sse import run_for_client

router = api_router()


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    responses={200: {"content": {"text/event-stream": {}}}},
    openapi_extra={"parameters": [AUGMENT_HEADER]},
)
async def complete_chat(body: ChatCompletionRequest, request: Request, exchange: CurrentExchange) -> Response:
    """Return the answer of a model or of an agent in OpenAI's format, as JSON or as a stream."""
    augment = parse_augment(request.headers)
    completions, scope = exchange.services.completions, exchange.scope
    await exchange.take_place("turns")
    if body.stream:
        replay = partial(replay_chunks, include_usage=body.include_usage)
        answer = AnswerBuilder(body.model)
        recorded = answer if exchange.idempotency is not None else None
        frames = partial(completions.stream, scope, body, augment, recorded)
        return await stream_idempotently(exchange, request.receive, frames, answer=answer.build, replay=replay)
    complete = partial(completions.complete, request=body, augment=augment)
    return await run_idempotently(exchange, lambda _: run_for_client(exchange, request.receive, complete))


def _warm_up(services: Services) -> None:
    services.completions.prepare()
    services.read_keys(all_models=True)


app = stream_app(router, warm_up=_warm_up)
