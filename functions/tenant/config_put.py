"""PUT /v1/tenant/config: the tenant's own settings."""

from typing import Any

from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import admin_router

router = admin_router()


@router.put("/v1/tenant/config")
async def change_settings(body: dict[str, Any], exchange: CurrentExchange) -> Response:
    """Change the settings that are named and leave the others; null gives one back to the operator's file. They hold everywhere
    within a minute."""
    settings = await exchange.services.cascade.change(exchange.scope.store, body)
    return json_response(settings.wire())


handler = lambda_handler(router)
