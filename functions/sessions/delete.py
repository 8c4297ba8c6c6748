"""DELETE /a1/agents/{name}/sessions/{session_id}: a session and all its messages."""

from spass.tenancy.response_model import Deletion
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AgentParameter, SessionParameter, api_router

router = api_router()


@router.delete("/a1/agents/{name}/sessions/{session_id}")
async def delete_session(name: AgentParameter, session_id: SessionParameter, exchange: CurrentExchange) -> Deletion:
    """Delete a session. The request is refused while a turn runs in the session."""
    await exchange.services.sessions.delete(exchange.scope, name, session_id)
    return Deletion(deleted=True)


handler = lambda_handler(router)
