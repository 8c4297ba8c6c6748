"""GET /v1/operators/{operator_id}/notes: the notes of an operator."""

from spass.core.ids import Operator
from spass.memory.views import NotePage, page_notes
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import OperatorParameter
from spass.web.routing import Pagination, api_router

router = api_router()


@router.get("/v1/operators/{operator_id}/notes")
async def list_notes(operator_id: OperatorParameter, page: Pagination, exchange: CurrentExchange) -> NotePage:
    """List the notes of one of the caller's operators."""
    operator = Operator(exchange.scope.caller.owner, operator_id)
    return await page_notes(exchange.scope.store, operator, page.cursor, page.limit)


handler = lambda_handler(router)
