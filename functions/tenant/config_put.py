"""PUT /v1/tenant/config: the tenant's own settings."""

from spass.tenancy.settings import EffectiveConfig
from spass.tenancy.stored_settings import ConfigChange
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AdminRoute, api_router

router = api_router(AdminRoute)


@router.put("/v1/tenant/config")
async def change_settings(body: ConfigChange, exchange: CurrentExchange) -> EffectiveConfig:
    """Change the named settings and leave the others. Null removes a stored setting, so that the operator's file decides. The
    change is in force everywhere within a minute."""
    return await exchange.services.cascade.change(exchange.scope.store, body)


handler = lambda_handler(router)
