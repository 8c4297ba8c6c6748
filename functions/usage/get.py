"""GET /v1/usage: what the tenant's model calls took."""

from starlette.responses import Response

from spass.metering.usage import usage
from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import api_router
from spass.web.usage_parameters import UsageReportQuery

router = api_router()


@router.get("/v1/usage")
async def get_usage(asked: UsageReportQuery, exchange: CurrentExchange) -> Response:
    """Requests, tokens and costs, summed up by agent, model or day (UTC); by user for an admin's token."""
    return json_response(await usage(exchange.scope.store, asked))


handler = lambda_handler(router)
