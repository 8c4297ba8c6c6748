"""Handle the queue of runs: queued runs of managed agents, and the ticks of their schedules."""

from spass.core.jobs import Delivery, RunAgent, Tick
from spass.core.time import Deadline
from spass.jobs.dispatch import Handler, NotHandled, Task
from spass.runs.log import ReportError
from spass.runs.managed_worker import RunWorker
from spass.store.tenant_store import TenantStore


def runs_handler(worker: RunWorker, report: ReportError) -> Handler:
    """Return the handler of the queue of runs. ``report`` returns an error as clients see it."""

    async def handle(store: TenantStore, task: Task, delivery: Delivery, deadline: Deadline) -> bool:
        match task:
            case RunAgent():
                return await worker.run(store, task, delivery, deadline, report)
            case Tick():
                return await worker.tick(store, task, delivery, deadline, report)
            case _:
                raise NotHandled("only runs and ticks come over this queue")

    return handle
