"""DELETE /c1/agents/{name}/chat/{message_id}: stop a turn."""

from starlette.responses import Response

from spass.runs.following import StopAnswer, stop_turn
from spass.web.bodies import json_response
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AgentParameter, MessageIdParameter, api_router

router = api_router()


@router.delete(
    "/c1/agents/{name}/chat/{message_id}",
    response_model=StopAnswer,
    responses={202: {"model": StopAnswer, "description": "The stop was requested."}},
)
async def stop(name: AgentParameter, message_id: MessageIdParameter, exchange: CurrentExchange) -> Response:
    """Stop a running turn. It is recorded as far as it got. A commit that has begun is not stopped."""
    answer = await stop_turn(exchange.scope, name, message_id)
    return json_response(answer, status=202 if answer.status == "cancelling" else 200)


handler = lambda_handler(router)
