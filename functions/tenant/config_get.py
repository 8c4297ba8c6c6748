"""GET /v1/tenant/config: the tenant's settings and their sources."""

from spass.tenancy.settings import EffectiveConfig
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/tenant/config")
async def get_settings(exchange: CurrentExchange) -> EffectiveConfig:
    """Return the tenant's settings in force, each with its source: the gateway's defaults, the operator's file, or the tenant."""
    return await exchange.services.cascade.read(exchange.scope.store)


handler = lambda_handler(router)
