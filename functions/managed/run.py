"""POST /v1/managed-agents/{agent_id}/run: run a managed agent in the background."""

from collections.abc import Mapping

from starlette.responses import Response

from spass.core.ids import RunId
from spass.core.messages import Json
from spass.managed.body import RunManagedAgent
from spass.managed.responses import RunView
from spass.store.idempotency import Claim
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.managed_parameters import ManagedAgentParameter
from spass.web.routing import api_router

router = api_router()


@router.post("/v1/managed-agents/{agent_id}/run", response_model=RunView, status_code=202)
async def start_run(agent_id: ManagedAgentParameter, exchange: CurrentExchange, body: RunManagedAgent | None = None) -> Response:
    """Queue a run of a managed agent. Its input is the pending messages, and then `input`. It never has an admin's rights."""

    async def start(claim: Claim | None) -> RouteResult:
        own_input = body.input if body is not None else None
        run = await exchange.services.managed_runs.queue(exchange.scope, agent_id, own_input, claim)
        return RouteResult(RunView.of(run), is_stored=True)

    async def send_lost(stored_body: Mapping[str, Json]) -> Mapping[str, Json]:
        await exchange.services.managed_runs.send_lost(exchange.scope, agent_id, RunId(str(stored_body["id"])))
        return stored_body

    return await run_idempotently(exchange, start, status=202, restore=send_lost)


handler = lambda_handler(router)
