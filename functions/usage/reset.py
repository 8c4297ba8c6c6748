"""DELETE /v1/usage: counting begins anew."""

from starlette.responses import Response

from spass.metering.usage import reset
from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import admin_router
from spass.web.usage_parameters import ResetAgent

router = admin_router()


@router.delete("/v1/usage")
async def reset_usage(agent: ResetAgent, exchange: CurrentExchange) -> Response:
    """Set the counters of the tenant, or of one of its agents, back to nothing. A budget that is spent stays spent."""
    await reset(exchange.scope.store, agent)
    return json_response({"reset": True})


handler = lambda_handler(router)
