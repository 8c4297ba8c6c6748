"""AWS in memory: a table, a bucket, queues and a scheduler behind the gateway's own ``Aws``."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from spass.aws.clients import Aws
from spass.aws.job_targets import NO_JOB_TARGETS, JobTargets
from spass.aws.schedules import SchedulerClient
from spass.core.time import now_s
from spass.store.table import TableClient
from spass.testing.bucket import MemoryBucket
from spass.testing.scheduler import MemoryScheduler
from spass.testing.table import MemoryTable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sqs import SQSClient


_SENT: Final = {"QueueUrl", "MessageBody", "MessageGroupId", "DelaySeconds"}


class MemoryQueues:
    """Queues that store nothing: ``send_message`` calls ``on_message(queue_url, body)`` at once. ``last_delay`` is that message's
    delay in seconds."""

    def __init__(self) -> None:
        self.on_message: Callable[[str, str], None] = lambda queue, body: None  # noqa: ARG005 (the callback's names)
        self.last_delay = 0

    def send_message(self, **call: Any) -> dict[str, Any]:
        assert {"QueueUrl", "MessageBody", "MessageGroupId"} <= call.keys() <= _SENT, call.keys()
        self.last_delay = call.get("DelaySeconds", 0)
        self.on_message(call["QueueUrl"], call["MessageBody"])
        return {}


class MemoryAws(Aws):
    """A table, a bucket, queues and a scheduler in memory, for any number of threads. ``clock`` gives seconds since the epoch."""

    def __init__(
        self, job_targets: JobTargets = NO_JOB_TARGETS, clock: Callable[[], float] = now_s, *, versioned: bool = False
    ) -> None:
        super().__init__(table="spass", bucket="spass", job_targets=job_targets)
        self.table = MemoryTable(clock)
        self.bucket = MemoryBucket(clock, versioned=versioned)
        self.queues = MemoryQueues()
        self.scheduler = MemoryScheduler()

    def _credentials(self) -> None:
        return None  # they never expire

    @cached_property
    def _table_client(self) -> TableClient:
        return self.table

    @cached_property
    def _s3(self) -> "S3Client":
        return cast("S3Client", self.bucket)

    @cached_property
    def _scheduler(self) -> SchedulerClient:
        return self.scheduler

    @cached_property
    def _sqs(self) -> "SQSClient":
        return cast("SQSClient", self.queues)
