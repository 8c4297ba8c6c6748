"""POST /v1/ask: one question to any agent kind, or to an agent."""

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.answers import AskAnswer
from spass.agents.ask import AskBody
from spass.agents.chat import run_without_session
from spass.calls.scope import Scope
from spass.core.events import Event
from spass.core.outcome import TurnOutcome
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.operator_answers import answer_operator
from spass.web.operators import operator_of
from spass.web.outcomes import STREAM_RESPONSE, answer_run
from spass.web.routing import api_router

router = api_router()


@router.post("/v1/ask", response_model=AskAnswer, responses={200: STREAM_RESPONSE})
async def ask(body: AskBody, request: Request, exchange: CurrentExchange) -> Response:
    """Ask any agent kind, or the agent of a file. It may call tools. The question and the answer are not stored, unless an
    operator is asked: then this is a turn of its session, which `metadata.session_id` names."""
    engine, agent = exchange.services.engine, exchange.services.asker.agent(exchange.scope, body)
    engine.check(exchange.scope, agent)
    given = body.context.given
    if (operator := operator_of(exchange, agent)) is not None:
        return await answer_operator(
            exchange, agent, operator, body.input, AskAnswer.of, stream=body.stream, given=given, shows_kind=True
        )

    def run(scope: Scope) -> AsyncGenerator[Event | TurnOutcome, None]:
        events = engine.run(scope, agent, body.input, given=given)
        return run_without_session(scope, agent.run(exchange.request_id), events)

    return await answer_run(exchange, agent, request.receive, run, AskAnswer.of, stream=body.stream, shows_kind=True)


app = stream_app(router, warm_up=lambda services: (services.engine, services.asker, services.read_keys(all_models=True)))
