"""Every background worker, as plain data: one row is one Lambda and its trigger. Callers cannot invoke these functions.

``infra/stacks/jobs.py`` deploys this table, ``local/`` runs it, tests compare it with the files. This module imports nothing of
the runtime.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from infra.routes import Permission


class Trigger(StrEnum):
    """The source of a worker's events."""

    JOBS = "jobs"  # a message of the queue of jobs
    COMPACTIONS = "compactions"  # a message of the queue of compactions
    RUNS = "runs"  # a message of the queue of runs
    COMPACTION = "compaction"  # a step of the state machine that compacts
    HOURLY = "hourly"  # the clock; several workers may have it, every other trigger has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One row of the table.

    ``module`` is the file in ``functions/workers/``; its ``handler`` takes the event. ``memory`` is in MiB. ``seconds`` is the
    timeout, at most Lambda's 15 minutes. Before it ends, the worker hands its remaining work over to another invocation.
    """

    module: str
    trigger: Trigger
    permissions: frozenset[Permission]
    memory: int
    seconds: int = 900

    @property
    def function_name(self) -> str:
        """Return the logical name of the Lambda, e.g. ``worker-compaction-step``."""
        return f"worker-{self.module.replace('_', '-')}"


_STORE: Final = frozenset({Permission.TABLE_READ, Permission.TABLE_WRITE, Permission.BUCKET_READ, Permission.BUCKET_WRITE})
_INGEST: Final = _STORE | {Permission.UPLOADS_READ, Permission.JOBS_SEND, Permission.MODELS, Permission.EMBEDDING}
# It runs an agent as the routes of agents do, and sends the tenant's next run. A tick that is not wanted any more deletes the
# entry of its schedule.
_RUN: Final = _STORE | {
    Permission.MODELS,
    Permission.EMBEDDING,
    Permission.JOBS_SEND,
    Permission.RUNS_SEND,
    Permission.SANDBOX,
    Permission.SANDBOX_NAME,
    Permission.EDITOR,
    Permission.SCHEDULES_DELETE,
}
_SCHEDULES: Final = frozenset({Permission.SCHEDULES_READ, Permission.SCHEDULES_WRITE, Permission.SCHEDULES_DELETE})

WORKERS: Final[tuple[Worker, ...]] = (
    # A merge has its inputs and its result in memory. A file spends most of its time in embedding, which more memory speeds up.
    Worker(module="jobs", trigger=Trigger.JOBS, permissions=_INGEST, memory=3008),
    # A client waits for it, and starting the state machine takes well under a second. A short timeout leads to an early retry.
    Worker(
        module="compactions",
        trigger=Trigger.COMPACTIONS,
        permissions=frozenset({Permission.COMPACTION_START}),
        memory=512,
        seconds=45,
    ),
    # A run takes up to 14 minutes.
    Worker(module="runs", trigger=Trigger.RUNS, permissions=_RUN, memory=1769),
    # It waits for models, and sends the tenant's next job. All attempts that `infra/compaction.asl.json` allows must fit into the
    # hour of a job.
    Worker(
        module="compaction_step",
        trigger=Trigger.COMPACTION,
        permissions=_STORE | {Permission.MODELS, Permission.JOBS_SEND, Permission.COMPACTIONS_SEND},
        memory=1024,
        seconds=600,
    ),
    # It sends lost messages of jobs and runs again, corrects the entries of schedules by the table, and keeps the
    # sandbox from becoming inactive.
    Worker(
        module="sweep",
        trigger=Trigger.HOURLY,
        permissions=_STORE
        | _SCHEDULES
        | {
            Permission.JOBS_SEND,
            Permission.COMPACTIONS_SEND,
            Permission.RUNS_SEND,
            Permission.SANDBOX,
            Permission.SANDBOX_NAME,
        },
        memory=1024,
    ),
)
