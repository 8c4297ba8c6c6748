"""GET /a1/agents/{name}/sessions/{session_id}: one session."""

from spass.sessions.session import SessionView
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AgentParameter, SessionParameter, api_router

router = api_router()


@router.get("/a1/agents/{name}/sessions/{session_id}")
async def get_session(name: AgentParameter, session_id: SessionParameter, exchange: CurrentExchange) -> SessionView:
    """Return a session and the number of its messages. This also works after the operator has removed the agent."""
    sessions = exchange.services.sessions
    return sessions.view(await sessions.get(exchange.scope, name, session_id))


handler = lambda_handler(router)
