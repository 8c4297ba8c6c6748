"""POST /v1/managed-agents/{agent_id}/messages: a message to a managed agent, which waits or is answered as a stream."""

from starlette.responses import Response

from spass.managed.body import SendMessage
from spass.managed.responses import MessageView
from spass.store.idempotency import Claim
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.managed_parameters import ManagedAgentParameter
from spass.web.managed_streams import STREAM_OF_RUN, stream_message
from spass.web.routing import api_router

router = api_router()


@router.post(
    "/v1/managed-agents/{agent_id}/messages", response_model=MessageView, status_code=202, responses={200: STREAM_OF_RUN}
)
async def send_agent_message(agent_id: ManagedAgentParameter, body: SendMessage, exchange: CurrentExchange) -> Response:
    """Put a message into the mailbox of a managed agent, where it waits for the next run. With `stream`, run the agent at once
    and answer with the stream of this run: OpenAI's chunks, tool calls and their results. The message is stored before the first
    byte."""
    if body.stream:
        return await stream_message(exchange, agent_id, body.content)

    async def put(claim: Claim | None) -> RouteResult:
        message = await exchange.services.managed_agents.send(exchange.scope, agent_id, body.content, claim)
        return RouteResult(MessageView.of(message), is_stored=True)

    return await run_idempotently(exchange, put, status=202)


app = stream_app(
    router,
    warm_up=lambda services: (services.managed_runs, services.agents, services.read_keys(all_models=True)),
)
