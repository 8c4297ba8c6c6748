"""POST /a1/agents/{name}/chat: one message and one reply, without a session; or one run of an operator."""

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.responses import Reply
from spass.agents.spec import MessageBody
from spass.runs.run import RunRequest
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.routing import AgentParameter, api_router
from spass.web.run_responses import STREAM_RESPONSE, answer_run

router = api_router()


@router.post("/a1/agents/{name}/chat", response_model=Reply, responses={200: STREAM_RESPONSE})
async def ask_agent(name: AgentParameter, body: MessageBody, request: Request, exchange: CurrentExchange) -> Response:
    """Ask an agent once. It may call its tools. The message and the reply are not stored, unless the agent runs as an operator:
    then this is a turn of the operator's session."""
    agent = exchange.services.agents.get(name)
    exchange.services.engine.check(exchange.scope, agent)
    run = RunRequest(body.message, agent.operator_of(exchange.scope.caller.owner), idempotency=exchange.idempotency)
    return await answer_run(exchange, agent, run, request.receive, stream=body.stream)


app = stream_app(router, warm_up=lambda services: (services.runs, services.agents, services.read_keys(all_models=True)))
