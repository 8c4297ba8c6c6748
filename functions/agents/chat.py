"""POST /a1/agents/{name}/chat: one message and one reply, without a session."""

from starlette.responses import Response

from spass.agents.answers import Reply
from spass.agents.chat import chat
from spass.agents.spec import MessageBody
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import run_idempotently
from spass.web.routing import AgentParameter, api_router

router = api_router()


@router.post("/a1/agents/{name}/chat", response_model=Reply)
async def ask_agent(name: AgentParameter, body: MessageBody, exchange: CurrentExchange) -> Response:
    """Ask an agent once. It may call its tools. The message and the reply are not stored."""
    services = exchange.services
    agent = services.agents.get(name)
    services.engine.check(exchange.scope, agent)
    return await run_idempotently(exchange, lambda _: chat(services.engine, exchange.scope, agent, body.message))


app = stream_app(router, warm_up=lambda services: (services.engine, services.agents, services.read_keys(all_models=True)))
