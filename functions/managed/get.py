"""GET /v1/managed-agents/{agent_id}: one managed agent."""

from spass.managed.responses import ManagedAgentView
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import ManagedAgentParameter
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/managed-agents/{agent_id}")
async def get_managed_agent(agent_id: ManagedAgentParameter, exchange: CurrentExchange) -> ManagedAgentView:
    """Return one of the caller's managed agents."""
    return ManagedAgentView.of(await exchange.services.managed_agents.get(exchange.scope, agent_id))


handler = lambda_handler(router)
