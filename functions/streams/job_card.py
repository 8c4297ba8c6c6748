"""POST /c1/agents/{name}/job_card: one turn of a chat whose message is a job card."""

from starlette.requests import Request
from starlette.responses import Response

from spass.runs.chat_body import JobCard
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.routing import AgentParameter, api_router
from spass.web.run_responses import run_chat
from spass.web.streams import EventStream

router = api_router()


@router.post("/c1/agents/{name}/job_card", response_class=EventStream)
async def job_card(name: AgentParameter, body: JobCard, request: Request, exchange: CurrentExchange) -> Response:
    """Run a job card as one turn of a chat. Follow and stop its stream like that of a chat."""
    return await run_chat(exchange, name, body.model, body.request(await request.json()), request.receive)


app = stream_app(router, warm_up=lambda services: (services.runs.sessions, services.agents, services.read_keys(all_models=True)))
