"""Send work of a tenant to workers: jobs to the queues, and compactions to their state machine."""

from typing import Final, Protocol

from spass.core.ids import JobId
from spass.core.jobs import Job, WorkKind

MAX_DELAY_SECONDS: Final = 900
"""The longest delay of a message that SQS allows."""


class TenantJobs(Protocol):
    """Send jobs of one tenant.

    Raises:
        StorageUnavailable: the queue or the state machine does not exist or does not answer; the work may have been sent.
    """

    async def send(self, job: Job, *, delay: int = 0) -> None:
        """Send ``job`` to its queue, which delivers it after ``delay`` seconds, at most ``MAX_DELAY_SECONDS``."""

    async def send_body(self, kind: WorkKind, body: str, *, delay: int = 0) -> None:
        """Send the body of a message to the queue of ``kind``, as ``send`` does."""

    async def start_compaction(self, job: JobId) -> None:
        """Start the state machine on a compaction. A second start has no effect."""
