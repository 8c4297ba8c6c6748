"""GET /v1/usage: what the tenant's model calls took."""

from starlette.responses import Response

from spass.metering.usage import usage
from spass.web.exchange import Current
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.reports import Report
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/usage")
async def get_usage(asked: Report, exchange: Current) -> Response:
    """Requests, tokens and costs, summed up by agent, model or day (UTC); by user for an admin's token."""
    return json_response(await usage(exchange.scope.store, asked))


handler = lambda_handler(router)
