"""GET /v1/tenant/config: what holds for the tenant, and who said it."""

from spass.tenancy.settings import EffectiveConfig
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/tenant/config")
async def get_settings(exchange: CurrentExchange) -> EffectiveConfig:
    """The tenant's settings in force, each with its source: the gateway's defaults, the operator's file, or the tenant itself."""
    return await exchange.services.cascade.read(exchange.scope.store)


handler = lambda_handler(router)
