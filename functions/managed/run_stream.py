"""GET /v1/managed-agents/{agent_id}/runs/{run_id}/stream: follow the stream of a run, or replay it."""

from starlette.requests import Request
from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.managed_parameters import ManagedAgentParameter, RunParameter
from spass.web.managed_streams import follow_run_stream
from spass.web.routing import api_router
from spass.web.streams import LAST_EVENT_ID, EventStream

router = api_router()


@router.get(
    "/v1/managed-agents/{agent_id}/runs/{run_id}/stream",
    response_class=EventStream,
    responses={204: {"description": "`Last-Event-ID` is the last event of a stream that has ended."}},
    openapi_extra={"parameters": [LAST_EVENT_ID]},
)
async def follow_managed_run(
    agent_id: ManagedAgentParameter, run_id: RunParameter, request: Request, exchange: CurrentExchange
) -> Response:
    """Return the stream of a run, running or finished: from its start, or after the event that `Last-Event-ID` names."""
    return await follow_run_stream(request, exchange, agent_id, run_id)


app = stream_app(router)
