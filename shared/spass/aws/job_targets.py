"""The queues and the state machine that take work from requests."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class JobTargets:
    """The URLs of the queues and the ARN of the state machine. None: the deployment does not have it.

    Compactions have a queue of their own. A client waits for them, so they must not queue behind another tenant's files.
    """

    queue: str | None = None
    compaction_queue: str | None = None
    compaction_machine: str | None = None


NO_JOB_TARGETS: Final = JobTargets()
