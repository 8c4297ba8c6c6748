"""AWS in memory: a table, a bucket, queues and a scheduler behind the gateway's own ``Aws``."""

import re
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from botocore.exceptions import ClientError

from spass.aws.clients import Aws
from spass.aws.job_targets import NO_JOB_TARGETS, JobTargets
from spass.aws.schedules import SchedulerClient
from spass.core.time import now_s
from spass.store.table import TableClient
from spass.store.work_line import WorkBound, default_work_bound
from spass.testing.bucket import MemoryBucket
from spass.testing.table import MemoryTable, MemoryTableClient

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sqs import SQSClient


_SENT: Final = {"QueueUrl", "MessageBody", "MessageGroupId", "DelaySeconds"}

_NAME: Final = re.compile(r"[0-9a-zA-Z-_.]{1,64}")
_PARAMETERS: Final = {
    "GroupName",
    "Name",
    "ScheduleExpression",
    "ScheduleExpressionTimezone",
    "State",
    "ActionAfterCompletion",
    "FlexibleTimeWindow",
    "Target",
}


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


class MemoryScheduler:
    """The entries of all groups, for any number of threads. ``entries`` maps a group and a name to the parameters of the call
    that wrote the entry. ``updates`` counts the calls that replaced one."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], dict[str, Any]] = {}
        self.updates = 0
        self._lock = threading.Lock()

    def create_schedule(self, **parameters: Any) -> Mapping[str, Any]:
        key = _checked(parameters)
        with self._lock:
            if key in self.entries:
                raise _error("ConflictException", "CreateSchedule")
            self.entries[key] = parameters
        return {"ScheduleArn": f"arn:aws:scheduler:eu-central-1:000000000000:schedule/{'/'.join(key)}"}

    def update_schedule(self, **parameters: Any) -> Mapping[str, Any]:
        key = _checked(parameters)
        with self._lock:
            if key not in self.entries:
                raise _error("ResourceNotFoundException", "UpdateSchedule")
            self.entries[key] = parameters
            self.updates += 1
        return {"ScheduleArn": f"arn:aws:scheduler:eu-central-1:000000000000:schedule/{'/'.join(key)}"}

    def delete_schedule(self, *, GroupName: str, Name: str) -> Mapping[str, Any]:  # noqa: N803
        with self._lock:
            if self.entries.pop((GroupName, Name), None) is None:
                raise _error("ResourceNotFoundException", "DeleteSchedule")
        return {}

    def get_schedule(self, *, GroupName: str, Name: str) -> Mapping[str, Any]:  # noqa: N803
        with self._lock:
            if (GroupName, Name) not in self.entries:
                raise _error("ResourceNotFoundException", "GetSchedule")
            return dict(self.entries[GroupName, Name])

    def list_schedules(self, *, GroupName: str, MaxResults: int, NextToken: str = "") -> Mapping[str, Any]:  # noqa: N803
        """List the entries of a group by name. The token is the last name of the page before."""
        with self._lock:
            names = sorted(name for group, name in self.entries if group == GroupName and name > NextToken)
        page = names[:MaxResults]
        return {"Schedules": [{"Name": name} for name in page]} | ({"NextToken": page[-1]} if len(names) > len(page) else {})


def _checked(parameters: Mapping[str, Any]) -> tuple[str, str]:
    assert parameters.keys() == _PARAMETERS, parameters.keys()
    target = parameters["Target"]
    assert all(isinstance(target[name], str) and target[name] for name in ("Arn", "RoleArn", "Input")), target
    assert _NAME.fullmatch(parameters["Name"]), parameters["Name"]
    return parameters["GroupName"], parameters["Name"]


def _error(code: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": 409}}, operation)  # type: ignore[typeddict-item]


class MemoryAws(Aws):
    """A table, a bucket, queues and a scheduler in memory, for any number of threads. ``clock`` gives seconds since the epoch."""

    def __init__(
        self,
        job_targets: JobTargets = NO_JOB_TARGETS,
        clock: Callable[[], float] = now_s,
        *,
        versioned: bool = False,
        work_bound: WorkBound = default_work_bound,
    ) -> None:
        super().__init__(table="spass", bucket="spass", job_targets=job_targets, work_bound=work_bound)
        self.table = MemoryTable(clock)
        self.bucket = MemoryBucket(clock, versioned=versioned)
        self.queues = MemoryQueues()
        self.scheduler = MemoryScheduler()

    def connect(self) -> None:
        """Do nothing: memory needs no connection."""

    def _credentials(self) -> None:
        return None  # they never expire

    @cached_property
    def _table_client(self) -> TableClient:
        return MemoryTableClient(self.table)

    @cached_property
    def _s3(self) -> "S3Client":
        return cast("S3Client", self.bucket)

    @cached_property
    def _scheduler(self) -> SchedulerClient:
        return self.scheduler

    @cached_property
    def _sqs(self) -> "SQSClient":
        return cast("SQSClient", self.queues)
