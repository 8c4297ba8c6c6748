"""GET /a1/agents/{name}/sessions/{session_id}: one session."""

from spass.sessions.session import SessionView
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AgentParameter, SessionParameter, api_router

router = api_router()


@router.get("/a1/agents/{name}/sessions/{session_id}")
async def get_session(name: AgentParameter, session_id: SessionParameter, exchange: CurrentExchange) -> SessionView:
    """What a session is, and how many messages it has. (It also answers for an agent that the operator has taken
    away: the session knows whose it is.)"""
    return SessionView.of(await exchange.services.sessions.get(exchange.scope, name, session_id))


handler = lambda_handler(router)
