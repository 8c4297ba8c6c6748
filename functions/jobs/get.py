"""GET /a1/jobs/{job_id}: the status of a job."""

from spass.sessions.compaction.jobs import JobView
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import JobParameter, api_router

router = api_router()


@router.get("/a1/jobs/{job_id}")
async def get_job(job_id: JobParameter, exchange: CurrentExchange) -> JobView:
    """Return a job's status and, after its end, its result or error."""
    jobs, scope = exchange.services.compaction_jobs, exchange.scope
    job = await jobs.get(scope, job_id)
    scope.tally.add(job.cost)
    return JobView.of(job, await jobs.result(scope, job))


handler = lambda_handler(router)
