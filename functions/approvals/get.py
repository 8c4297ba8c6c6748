"""GET /a1/approvals/{approval_id}: one approval."""

from spass.approvals.responses import ApprovalView
from spass.web.approval_parameters import ApprovalParameter
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/a1/approvals/{approval_id}")
async def get_approval(approval_id: ApprovalParameter, exchange: CurrentExchange) -> ApprovalView:
    """Return one of the user's approvals: a tool call that waits for the user, or that the user has decided."""
    return await exchange.services.approvals.get(exchange.scope, approval_id)


handler = lambda_handler(router)
