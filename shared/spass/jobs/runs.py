"""Handle the queue of runs: queued runs of managed agents, and the ticks of their schedules."""

from spass.agents.live_stream import ReportError
from spass.aws.clients import TenantStore
from spass.core.jobs import Delivery, RunAgent, Tick
from spass.core.time import Deadline
from spass.jobs.dispatch import Handler, NotHandled
from spass.jobs.messages import Task
from spass.managed.runner import ManagedRuns
from spass.managed.ticks import Ticks


def runs_handler(runs: ManagedRuns, ticks: Ticks, report: ReportError) -> Handler:
    """Return the handler of the queue of runs. ``report`` returns an error as clients see it."""

    async def handle(store: TenantStore, task: Task, delivery: Delivery, deadline: Deadline) -> bool:
        match task:
            case RunAgent(agent=agent, run=run):
                return await runs.execute(store, agent, run, deadline, report)
            case Tick():
                claimed = await ticks.claim(store, task, delivery.sent)
                return claimed is None or await runs.execute(store, task.agent, claimed, deadline, report)
            case _:
                raise NotHandled("only runs and ticks come over this queue")

    return handle
