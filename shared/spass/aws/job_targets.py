"""The queues, the state machine and the schedule group that take work from requests."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class JobTargets:
    """The URLs of the queues, the ARN of the state machine, and the schedule group. None: the deployment does not have it.

    ``schedule_role`` is the ARN of the role with which an entry of the group sends to the queue ``runs_queue_arn``.

    Compactions have a queue of their own. A client waits for them, so they must not queue behind another tenant's files.
    """

    queue: str | None = None
    compaction_queue: str | None = None
    compaction_machine: str | None = None
    runs_queue: str | None = None
    runs_queue_arn: str | None = None
    schedule_group: str | None = None
    schedule_role: str | None = None


NO_JOB_TARGETS: Final = JobTargets()
