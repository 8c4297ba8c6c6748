"""DELETE /v1/usage: reset the usage counters."""

from spass.metering.usage import Reset, reset
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AdminRoute, api_router
from spass.web.usage_parameters import ResetAgent

router = api_router(AdminRoute)


@router.delete("/v1/usage")
async def reset_usage(agent: ResetAgent, exchange: CurrentExchange) -> Reset:
    """Set the counters of the tenant, or of one of its agents, to zero. A spent budget stays spent."""
    await reset(exchange.scope.store, agent)
    return Reset(reset=True)


handler = lambda_handler(router)
