"""POST /c1/agents/{name}/chat: one turn of a chat, as a stream that can be followed, resumed and stopped."""

from starlette.requests import Request
from starlette.responses import Response

from spass.core.errors import InvalidRequest
from spass.runs.chat_body import ChatBody
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.routing import AgentParameter, api_router
from spass.web.run_responses import run_chat
from spass.web.streams import EventStream

router = api_router()


@router.post("/c1/agents/{name}/chat", response_class=EventStream)
async def chat(name: AgentParameter, body: ChatBody, request: Request, exchange: CurrentExchange) -> Response:
    """Run one turn of a chat as a stream. The same request again follows that stream, or replays it."""
    if body.agent_id not in (None, name):
        raise InvalidRequest("agent_id must be the name of the agent in the path. Omit it, or send that name.", param="agent_id")
    return await run_chat(exchange, name, body.model, body.request(await request.json()), request.receive)


app = stream_app(router, warm_up=lambda services: (services.runs.sessions, services.agents, services.read_keys(all_models=True)))
