"""GET /a1/agents/{name}/sessions/{session_id}/lineage: the chain of a session's compactions."""

from spass.sessions.lineage import Chain, read_chain
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AgentParameter, SessionParameter, api_router

router = api_router()


@router.get("/a1/agents/{name}/sessions/{session_id}/lineage")
async def get_lineage(name: AgentParameter, session_id: SessionParameter, exchange: CurrentExchange) -> Chain:
    """Return the ancestors and the successors of a session, nearest first, and the summaries of the whole chain, oldest first."""
    return await read_chain(exchange.scope, name, session_id)


handler = lambda_handler(router)
