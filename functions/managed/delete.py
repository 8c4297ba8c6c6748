"""DELETE /v1/managed-agents/{agent_id}: a managed agent with everything that belongs to it."""

from spass.tenancy.response_model import Deletion
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import ManagedAgentParameter
from spass.web.routing import api_router

router = api_router()


@router.delete("/v1/managed-agents/{agent_id}")
async def delete_managed_agent(agent_id: ManagedAgentParameter, exchange: CurrentExchange) -> Deletion:
    """Delete a managed agent with its conversation, messages, runs, state, notes and schedule. The request is refused while a run
    is active."""
    await exchange.services.managed_agents.delete(exchange.scope, agent_id)
    return Deletion(deleted=True)


handler = lambda_handler(router)
