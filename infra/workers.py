"""Every function that no caller reaches, as plain data: one row is one Lambda and what starts it.

``infra/stacks/jobs.py`` loops over this table, ``local/`` serves it, tests hold it to the files. Nothing here imports anything of
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
    COMPACTION = "compaction"  # a step of the state machine that compacts
    HOURLY = "hourly"  # the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One row of the table.

    ``module`` is the file in ``functions/workers/``; its ``handler`` takes the event. ``memory`` is in MiB. It may take as many
    ``seconds``, the 15 minutes of a Lambda at most, and hands over what is left before they end.
    """

    module: str
    trigger: Trigger
    permissions: frozenset[Permission]
    memory: int
    seconds: int = 900

    @property
    def function_name(self) -> str:
        """The logical name of the Lambda, e.g. ``worker-compaction-step``."""
        return f"worker-{self.module.replace('_', '-')}"


_STORE: Final = frozenset({Permission.TABLE_READ, Permission.TABLE_WRITE, Permission.BUCKET_READ, Permission.BUCKET_WRITE})
_INGEST: Final = _STORE | {Permission.UPLOADS_READ, Permission.JOBS_SEND, Permission.MODELS, Permission.EMBEDDING}

WORKERS: Final[tuple[Worker, ...]] = (
    # A merge holds its inputs and its result in memory; most of the time of a file goes into embedding.
    Worker(module="jobs", trigger=Trigger.JOBS, permissions=_INGEST, memory=3008),
    # Somebody waits until it has started the state machine, which takes no time: if it takes any, the next one may go better.
    Worker(
        module="compactions",
        trigger=Trigger.COMPACTIONS,
        permissions=frozenset({Permission.COMPACTION_START}),
        memory=512,
        seconds=45,
    ),
    # It waits for models; the tries that `infra/compaction.asl.json` gives it shall fit the hour that a job has.
    Worker(
        module="compaction_step",
        trigger=Trigger.COMPACTION,
        permissions=_STORE | {Permission.MODELS, Permission.JOBS_SEND},
        memory=1024,
        seconds=600,
    ),
    # It sends jobs again whose messages were lost.
    Worker(module="sweep", trigger=Trigger.HOURLY, permissions=_STORE | {Permission.JOBS_SEND}, memory=1024),
)
