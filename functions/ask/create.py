"""POST /v1/ask: one question to any agent kind, or to an agent, without a session."""

from collections.abc import AsyncGenerator

from starlette.responses import Response

from spass.agents.answers import AskAnswer
from spass.agents.ask import AskBody
from spass.agents.chat import run_without_session
from spass.core.events import Event
from spass.core.outcome import TurnOutcome
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.outcomes import answer_run
from spass.web.routing import api_router

router = api_router()


@router.post("/v1/ask", response_model=AskAnswer)
async def ask(body: AskBody, exchange: CurrentExchange) -> Response:
    """Ask any agent kind, or the agent of a file. It may call tools. The question and the answer are not stored."""
    engine, scope = exchange.services.engine, exchange.scope
    agent = exchange.services.asker.agent(scope, body)
    engine.check(scope, agent)

    def run() -> AsyncGenerator[Event | TurnOutcome, None]:
        events = engine.run(scope, agent, body.input, given=body.context.given)
        return run_without_session(scope, agent.run(scope.caller.request_id), events)

    return await answer_run(exchange, run, AskAnswer.of)


app = stream_app(router, warm_up=lambda services: (services.engine, services.asker, services.read_keys(all_models=True)))
