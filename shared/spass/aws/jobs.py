"""The queues of SQS and the state machine of Step Functions, through boto3."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import ClientError

from spass.aws.error_translation import storage_errors
from spass.aws.job_targets import JobTargets
from spass.core.errors import StorageUnavailable
from spass.core.ids import JobId, TenantId
from spass.core.jobs import Job, RunAgent, StartCompaction, Tick, WorkKind, body_of
from spass.store.invocation import ServiceCall, invoke, retry_once
from spass.store.jobs import MAX_DELAY_SECONDS, TenantJobs

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_stepfunctions import SFNClient

T = TypeVar("T")


class AwsJobs(TenantJobs):
    """Send jobs of one tenant."""

    def __init__(
        self, sqs: "Callable[[], SQSClient]", states: "Callable[[], SFNClient]", job_targets: JobTargets, tenant: TenantId
    ) -> None:
        self._sqs = sqs
        self._states = states
        self._job_targets = job_targets
        self._tenant = tenant

    def workers(self, kind: WorkKind) -> int:
        match kind:
            case WorkKind.COMPACTIONS:
                return self._job_targets.compaction_workers
            case WorkKind.RUNS:
                return self._job_targets.run_workers
            case WorkKind.FILES:
                return self._job_targets.job_workers

    async def send(self, job: Job, *, delay: int = 0) -> None:
        if job.tenant != self._tenant:
            raise PermissionError("the job belongs to another tenant")
        await self.send_body(_kind(job), body_of(job), delay=delay)

    async def send_body(self, kind: WorkKind, body: str, *, delay: int = 0) -> None:
        url = self._queue_url(kind)
        if url is None:
            raise StorageUnavailable("This deployment has no queue for this job.")
        # SQS delivers the messages of a tenant with few of them before those of one with a backlog.
        group = hashlib.sha256(self._tenant.encode()).hexdigest()
        message: dict[str, object] = {"QueueUrl": url, "MessageBody": body, "MessageGroupId": group}
        if delay:
            message["DelaySeconds"] = min(delay, MAX_DELAY_SECONDS)
        await _call("sqs", "SendMessage", self._sqs().send_message, message)

    def _queue_url(self, kind: WorkKind) -> str | None:
        match kind:
            case WorkKind.COMPACTIONS:
                return self._job_targets.compaction_queue
            case WorkKind.RUNS:
                return self._job_targets.runs_queue
            case WorkKind.FILES:
                return self._job_targets.queue

    async def start_compaction(self, job: JobId) -> None:
        """Start an execution with the name of the job, so that a second start has no effect."""
        machine = self._job_targets.compaction_machine
        if machine is None:
            raise RuntimeError("this deployment has no state machine for compactions")
        work = json.dumps({"tenant": self._tenant, "job": job})
        parameters = {"stateMachineArn": machine, "name": job, "input": work}
        try:
            await _call("states", "StartExecution", self._states().start_execution, parameters)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ExecutionAlreadyExists":
                raise


def _kind(job: Job) -> WorkKind:
    match job:
        case StartCompaction():
            return WorkKind.COMPACTIONS
        case RunAgent() | Tick():
            return WorkKind.RUNS
        case _:
            return WorkKind.FILES


async def _call(service: str, operation: str, method: Callable[..., T], parameters: Mapping[str, object]) -> T:
    def run() -> T:
        with storage_errors():
            return method(**parameters)

    return await retry_once(lambda: invoke(ServiceCall(service, operation, parameters), run))
