"""GET /v1/audit/{request_id}: what one request led to."""

from spass.metering.audit_tree import Audit, tree
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router
from spass.web.usage_parameters import OuterRequestId

router = api_router()


@router.get("/v1/audit/{request_id}")
async def get_audit(request_id: OuterRequestId, exchange: CurrentExchange) -> Audit:
    """Every call of a model or a tool that one request made, each below the call that it was made for. Another user's request is
    404, unless the token is an admin's."""
    return await tree(exchange.scope.store, exchange.scope.caller, request_id)


handler = lambda_handler(router)
