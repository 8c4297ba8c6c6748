"""POST /a1/agents/{name}/chat: one message and one reply, without a session; or one run of an operator."""

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.answers import Reply
from spass.agents.chat import run_without_session
from spass.agents.spec import MessageBody
from spass.calls.scope import Scope
from spass.core.events import Event
from spass.core.outcome import TurnOutcome
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.operator_answers import answer_operator
from spass.web.operators import operator_of
from spass.web.outcomes import STREAM_RESPONSE, answer_run
from spass.web.routing import AgentParameter, api_router

router = api_router()


@router.post("/a1/agents/{name}/chat", response_model=Reply, responses={200: STREAM_RESPONSE})
async def ask_agent(name: AgentParameter, body: MessageBody, request: Request, exchange: CurrentExchange) -> Response:
    """Ask an agent once. It may call its tools. The message and the reply are not stored, unless the agent runs as an operator:
    then this is a turn of the operator's session."""
    engine, agent = exchange.services.engine, exchange.services.agents.get(name)
    engine.check(exchange.scope, agent)
    if (operator := operator_of(exchange, agent)) is not None:
        return await answer_operator(exchange, agent, operator, body.message, Reply.of, stream=body.stream)

    def run(scope: Scope) -> AsyncGenerator[Event | TurnOutcome, None]:
        return run_without_session(scope, agent.run(exchange.request_id), engine.run(scope, agent, body.message))

    return await answer_run(exchange, agent, request.receive, run, Reply.of, stream=body.stream)


app = stream_app(router, warm_up=lambda services: (services.engine, services.agents, services.read_keys(all_models=True)))
