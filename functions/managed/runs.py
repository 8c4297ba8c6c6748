"""GET /v1/managed-agents/{agent_id}/runs: the runs of a managed agent."""

from spass.managed import runs
from spass.managed.records import read_agent
from spass.managed.responses import RunPage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import ManagedAgentParameter
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/v1/managed-agents/{agent_id}/runs")
async def list_runs(agent_id: ManagedAgentParameter, page: Pagination, exchange: CurrentExchange) -> RunPage:
    """List the runs of a managed agent, newest first."""
    store = exchange.scope.store
    agent = await read_agent(store, exchange.scope.caller.owner, agent_id)
    return await runs.page(store, agent.id, page.cursor, page.limit)


handler = lambda_handler(router)
