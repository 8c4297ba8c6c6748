"""POST /a1/agents/{name}/sessions/{session_id}/compact: replace old messages by a summary."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from spass.sessions.compaction.jobs import Compaction, JobTicket
from spass.sessions.session import CompactSession
from spass.store.idempotency import Claim
from spass.web.app import location
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.routing import AgentParameter, SessionParameter, api_router
from spass.web.sessions import PREFER_PARAMETER, PREFERENCE_APPLIED, RESPOND_ASYNC, fallback_model, prefers

WAIT_SECONDS: Final = 25.0

router = api_router()


@router.post(
    "/a1/agents/{name}/sessions/{session_id}/compact",
    response_model=Compaction,
    responses={202: {"model": JobTicket, "description": "The job continues; `Location` is its address."}},
    openapi_extra={"parameters": [PREFER_PARAMETER]},
)
async def compact(
    name: AgentParameter,
    session_id: SessionParameter,
    request: Request,
    exchange: CurrentExchange,
    body: CompactSession | None = None,  # noqa: ARG001 (FastAPI validates the body by it)
) -> Response:
    """Summarise the older messages of a session. The session is archived and continues as its successor, which begins with the
    summary and the messages that are kept. The request waits for this, except with `Prefer: respond-async`."""
    jobs, scope = exchange.services.compaction_jobs, exchange.scope.for_agent(name, session_id)
    model = fallback_model(exchange, name)
    respond_async = prefers(request.headers, RESPOND_ASYNC)

    async def start_and_wait(_: Claim | None) -> RouteResult | Compaction:
        job = await jobs.start(scope, name, session_id, fallback_model=model, idempotency=exchange.idempotency)
        if not respond_async:
            job = await jobs.wait(scope, job, WAIT_SECONDS)
            scope.tally.add(job.cost)
            if job.failure is not None:
                raise job.failure.error(job.id)
            if result := await jobs.result(scope, job):
                return result
        applied = {PREFERENCE_APPLIED: RESPOND_ASYNC} if respond_async else {}
        headers = {"Location": location(request, f"/a1/jobs/{job.id}"), **applied}
        return RouteResult(JobTicket(job_id=job.id, status=job.status), headers, status=202)

    if not respond_async:
        await exchange.take_place("turns")  # the function waits as it does for a model
    return await run_idempotently(exchange, start_and_wait)


app = stream_app(router, warm_up=lambda services: (services.agents, services.compaction_jobs))
