"""PATCH /v1/managed-agents/{agent_id}: change a managed agent."""

from spass.managed.body import PatchManagedAgent
from spass.managed.responses import ManagedAgentView
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import ManagedAgentParameter
from spass.web.routing import api_router

router = api_router()


@router.patch("/v1/managed-agents/{agent_id}")
async def patch_managed_agent(
    agent_id: ManagedAgentParameter, body: PatchManagedAgent, exchange: CurrentExchange
) -> ManagedAgentView:
    """Change fields of a managed agent; null removes a value. The change takes effect with the next run. From then on, scheduled
    runs act as the token of this request, if it changes what a run uses."""
    return ManagedAgentView.of(await exchange.services.managed_agents.patch(exchange.scope, agent_id, body))


handler = lambda_handler(router)
