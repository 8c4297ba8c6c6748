"""GET /v1/managed-agents/{agent_id}/runs/{run_id}: one run of a managed agent."""

from spass.managed.records import read_agent
from spass.managed.responses import RunView
from spass.managed.runs import read_run
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import ManagedAgentParameter, RunParameter
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/managed-agents/{agent_id}/runs/{run_id}")
async def get_run(agent_id: ManagedAgentParameter, run_id: RunParameter, exchange: CurrentExchange) -> RunView:
    """Return a run of a managed agent."""
    store = exchange.scope.store
    agent = await read_agent(store, exchange.scope.caller.owner, agent_id)
    return RunView.of(await read_run(store, agent.id, run_id))


handler = lambda_handler(router)
