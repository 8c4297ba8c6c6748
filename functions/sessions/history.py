"""GET /a1/agents/{name}/sessions/{session_id}/messages: the messages of a session."""

from spass.sessions.history import HistoryPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AgentParameter, Pagination, SessionParameter, api_router

router = api_router()


@router.get("/a1/agents/{name}/sessions/{session_id}/messages")
async def get_history(
    name: AgentParameter, session_id: SessionParameter, page: Pagination, exchange: CurrentExchange
) -> HistoryPage:
    """List a session's messages, oldest first. Compacted messages are included and have `compacted_at`."""
    return await exchange.services.sessions.history(exchange.scope, name, session_id, page.cursor, page.limit)


handler = lambda_handler(router)
