"""GET /v1/managed-agents/{agent_id}/messages: the mailbox of a managed agent."""

from spass.managed import mailbox
from spass.managed.records import read_agent
from spass.managed.responses import MessagePage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import ManagedAgentParameter
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/v1/managed-agents/{agent_id}/messages")
async def list_agent_messages(agent_id: ManagedAgentParameter, page: Pagination, exchange: CurrentExchange) -> MessagePage:
    """List the messages to and from a managed agent, oldest first. A message of the user is pending until a run has read it."""
    store = exchange.scope.store
    agent = await read_agent(store, exchange.scope.caller.owner, agent_id)
    return await mailbox.page(store, agent.id, page.cursor, page.limit)


handler = lambda_handler(router)
