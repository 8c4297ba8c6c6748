"""GET /a1/approvals/{approval_id}/changes: what a call that waits would change."""

from spass.approvals.responses import ChangePage
from spass.web.approval_parameters import ApprovalParameter
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/a1/approvals/{approval_id}/changes")
async def list_approval_changes(approval_id: ApprovalParameter, page: Pagination, exchange: CurrentExchange) -> ChangePage:
    """List the whole diffs of the files that a call that waits would change, by path. The cursor of the last page is the value
    of `seen` in the decision. The page after the last change has none."""
    return await exchange.services.approvals.changes(exchange.scope, approval_id, page.cursor, page.limit)


handler = lambda_handler(router)
