"""GET /c1/agents/{name}/chat/{message_id}: follow the stream of a turn, or replay it."""

from starlette.requests import Request
from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.routing import AgentParameter, MessageIdParameter, api_router
from spass.web.streams import LAST_EVENT_ID, EventStream, follow

router = api_router()


@router.get(
    "/c1/agents/{name}/chat/{message_id}",
    response_class=EventStream,
    responses={204: {"description": "`Last-Event-ID` is the last event of a stream that has ended."}},
    openapi_extra={"parameters": [LAST_EVENT_ID]},
)
async def follow_turn(
    name: AgentParameter, message_id: MessageIdParameter, request: Request, exchange: CurrentExchange
) -> Response:
    """Return the stream of a turn, running or finished: from its start, or after the event that `Last-Event-ID` names."""
    return await follow(request, exchange, name, message_id)


app = stream_app(router)
