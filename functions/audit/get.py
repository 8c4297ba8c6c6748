"""GET /v1/audit/{request_id}: the calls of one request."""

from spass.metering.audit_tree import Audit, tree
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router
from spass.web.usage_parameters import OuterRequestId

router = api_router()


@router.get("/v1/audit/{request_id}")
async def get_audit(request_id: OuterRequestId, exchange: CurrentExchange) -> Audit:
    """Return every call of a model or a tool that one request made, as a tree of calls and sub-calls. Another user's request is
    404, unless the token is an admin's."""
    return await tree(exchange.scope.store, exchange.scope.caller, request_id)


handler = lambda_handler(router)
