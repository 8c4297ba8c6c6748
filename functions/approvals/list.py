"""GET /a1/approvals: the user's approvals."""

from spass.approvals.responses import ApprovalPage
from spass.web.approval_parameters import ApprovalFilter
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/a1/approvals")
async def list_approvals(wanted: ApprovalFilter, page: Pagination, exchange: CurrentExchange) -> ApprovalPage:
    """List the user's approvals, newest first. A page may have fewer entries than `limit` although more follow."""
    approvals = exchange.services.approvals
    return await approvals.page(exchange.scope, wanted.status, wanted.session_id, page.cursor, page.limit)


handler = lambda_handler(router)
