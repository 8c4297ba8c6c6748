"""The gateway's own stores over a table and a bucket in memory."""

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from spass.aws.clients import Aws
from spass.aws.job_targets import JobTargets
from spass.aws.table import TableClient
from spass.testing.bucket import MemoryBucket
from spass.testing.table import MemoryTable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sqs import SQSClient

COMPACTION_MACHINE: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "infra" / "compaction.asl.json").read_text()
)
PLACES: Final = JobTargets(queue="jobs", compaction_queue="compactions", compaction_machine="compaction")


class MemoryQueues:
    """Tells of what is sent to the queues whoever works it off."""

    def __init__(self) -> None:
        self.told: Callable[[str, str], None] = lambda queue, body: None

    def send_message(self, **call: Any) -> dict[str, Any]:
        assert call.keys() == {"QueueUrl", "MessageBody"}, call.keys()
        self.told(call["QueueUrl"], call["MessageBody"])
        return {}


class SimulatedAws(Aws):
    """``clock`` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float], places: JobTargets = PLACES) -> None:
        super().__init__(table="spass", bucket="spass", places=places)
        self.table = MemoryTable(clock)
        self.bucket = MemoryBucket(clock)
        self.queues = MemoryQueues()

    @cached_property
    def _table_client(self) -> TableClient:
        return self.table

    @cached_property
    def _s3(self) -> "S3Client":
        return cast("S3Client", self.bucket)

    @cached_property
    def _sqs(self) -> "SQSClient":
        return cast("SQSClient", self.queues)
