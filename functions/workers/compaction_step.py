"""One step of the state machine that compacts a session."""

from collections.abc import Mapping
from typing import Any

from spass.core.ids import JobId, TenantId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.services import Services
from spass.web.startup import worker_handler


async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
    """Run one step of a job, in the trace of what started the machine."""
    if (tracer := services.tracer) is None:
        return await _run_step(services, event, deadline)
    name = f"compaction {event['step']}"
    return await tracer.trace_step(
        _run_step(services, event, deadline), TenantId(event["tenant"]), name, event.get("input") or {}
    )


async def _run_step(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
    """Run one step of a job: ``plan``, ``summarise``, ``commit``, or ``fail`` after another step failed.

    ``wait`` in the answer is the number of seconds after which the machine calls ``summarise`` again, or 0. Executions of the
    release before do not wait, and end while the new functions are at work: they lack ``may_wait``.
    """
    wait = 0
    store, job, steps = services.aws.for_tenant(TenantId(event["tenant"])), JobId(event["job"]), services.compaction_steps
    match event["step"]:
        case "plan":
            await steps.plan(store, job)
        case "summarise":
            wait = await steps.summarise(store, job, deadline, may_wait="may_wait" in event)
        case "commit":
            await steps.commit(store, job)
        case "fail":
            await steps.fail(store, job)
        case _:
            raise ValueError("This state machine has no such step.")
    return {"job": job, "wait": wait}


handler = worker_handler(
    work, warm_up=lambda services: (services.compaction_steps, services.router, services.read_keys(all_models=True))
)
