"""GET /v1/usage: usage of the tenant's model calls."""

from spass.metering.usage import UsageReport, usage
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router
from spass.web.usage_parameters import UsageReportQuery

router = api_router()


@router.get("/v1/usage")
async def get_usage(query: UsageReportQuery, exchange: CurrentExchange) -> UsageReport:
    """Return requests, tokens and costs by agent, model or day (UTC), or by user for an admin's token."""
    return await usage(exchange.scope.store, query)


handler = lambda_handler(router)
