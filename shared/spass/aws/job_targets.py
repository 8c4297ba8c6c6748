"""Where work that a request leaves to others is asked for."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class JobTargets:
    """Where work is asked for: the queues' URLs and the state machine's ARN. Where one is None there is nobody to ask.

    Compactions have a queue of their own: somebody waits for them, and a thousand files of another tenant shall not stand before
    them.
    """

    queue: str | None = None
    compaction_queue: str | None = None
    compaction_machine: str | None = None


NO_JOB_TARGETS: Final = JobTargets()
