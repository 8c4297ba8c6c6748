"""DELETE /v1/managed-agents/{agent_id}/runs/{run_id}: stop a run of a managed agent."""

from starlette.responses import Response

from spass.managed.following import RunStopAnswer, stop_run
from spass.web.bodies import json_response
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import ManagedAgentParameter, RunParameter
from spass.web.routing import api_router

router = api_router()


@router.delete(
    "/v1/managed-agents/{agent_id}/runs/{run_id}",
    response_model=RunStopAnswer,
    responses={202: {"model": RunStopAnswer, "description": "The stop was requested."}},
)
async def stop_managed_run(agent_id: ManagedAgentParameter, run_id: RunParameter, exchange: CurrentExchange) -> Response:
    """Stop a run. What it has done so far is recorded, and its messages are delivered. A run that has not begun is skipped, and
    its messages stay pending."""
    answer = await stop_run(exchange.scope, agent_id, run_id)
    return json_response(answer, status=202 if answer.status == "cancelling" else 200)


handler = lambda_handler(router)
