"""POST /v1/ask: one question to any agent kind, or to an agent."""

from starlette.requests import Request
from starlette.responses import Response

from spass.agents.ask import AskBody
from spass.agents.render.frames import EventFormat
from spass.agents.responses import AskAnswer
from spass.runs.run import RunRequest
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.routing import api_router
from spass.web.run_responses import STREAM_RESPONSE, answer_run

router = api_router()


@router.post("/v1/ask", response_model=AskAnswer, responses={200: STREAM_RESPONSE})
async def ask(body: AskBody, request: Request, exchange: CurrentExchange) -> Response:
    """Ask any agent kind, or the agent of a file. It may call tools. The question and the answer are not stored, unless an
    operator is asked: then this is a turn of its session, which `metadata.session_id` names."""
    agent = exchange.services.asker.agent(exchange.scope, body)
    exchange.services.engine.check(exchange.scope, agent)
    run = RunRequest(
        body.input,
        agent.operator_of(exchange.scope.caller.owner),
        given=body.context.given,
        idempotency=exchange.idempotency,
        form=EventFormat(shows_kind=True),
    )
    return await answer_run(exchange, agent, run, request.receive, AskAnswer.of, stream=body.stream)


app = stream_app(router, warm_up=lambda services: (services.runs, services.asker, services.read_keys(all_models=True)))
