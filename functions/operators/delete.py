"""DELETE /v1/operators/{operator_id}: forget an operator's state and notes."""

from spass.core.ids import Operator
from spass.sessions import operator_requests
from spass.tenancy.response_model import Deletion
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.managed_parameters import OperatorParameter
from spass.web.routing import api_router

router = api_router()


@router.delete("/v1/operators/{operator_id}")
async def delete_operator(operator_id: OperatorParameter, exchange: CurrentExchange) -> Deletion:
    """Forget the state and the notes of an operator. `deleted` is false if there was none. Its next run begins another session.
    The request is refused during a run."""
    return Deletion(
        deleted=await operator_requests.delete_operator(exchange.scope.store, Operator(exchange.scope.caller.owner, operator_id))
    )


handler = lambda_handler(router)
