"""GET /v1/operators/{operator_id}: the session, the state and the number of notes of an operator."""

from spass.core.ids import Operator
from spass.sessions.operator_requests import OperatorView, view_operator
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import OperatorParameter
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/operators/{operator_id}")
async def get_operator(operator_id: OperatorParameter, exchange: CurrentExchange) -> OperatorView:
    """Return one of the caller's operators: its session, its state and how many notes it has. It exists from its first run on."""
    return await view_operator(exchange.scope.store, Operator(exchange.scope.caller.owner, operator_id))


handler = lambda_handler(router)
