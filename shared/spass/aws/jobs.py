"""Send work to workers: jobs to the queues, and compactions to their state machine."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import ClientError

from spass.aws.error_translation import storage_errors
from spass.aws.invocation import AwsCall, invoke, retry_once
from spass.aws.job_targets import JobTargets
from spass.core.errors import StorageUnavailable
from spass.core.ids import JobId, TenantId
from spass.core.jobs import Job, RunAgent, StartCompaction, Tick, body_of

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_stepfunctions import SFNClient

T = TypeVar("T")


class TenantJobs:
    """Send jobs of one tenant."""

    def __init__(
        self, sqs: "Callable[[], SQSClient]", states: "Callable[[], SFNClient]", job_targets: JobTargets, tenant: TenantId
    ) -> None:
        self._sqs = sqs
        self._states = states
        self._job_targets = job_targets
        self._tenant = tenant

    async def send(self, job: Job) -> None:
        """Send ``job`` to its queue.

        Raises:
            StorageUnavailable: the queue does not exist or does not answer; the job may have been sent.
        """
        if job.tenant != self._tenant:
            raise PermissionError("the job belongs to another tenant")
        url = self._queue_of(job)
        if url is None:
            raise StorageUnavailable("This deployment has no queue for this job.")
        await _call("sqs", "SendMessage", self._sqs().send_message, {"QueueUrl": url, "MessageBody": body_of(job)})

    def _queue_of(self, job: Job) -> str | None:
        match job:
            case StartCompaction():
                return self._job_targets.compaction_queue
            case RunAgent() | Tick():
                return self._job_targets.runs_queue
            case _:
                return self._job_targets.queue

    async def start_compaction(self, job: JobId) -> None:
        """Start the state machine on a compaction. A second start has no effect, because the execution has the name of the job.

        Raises:
            StorageUnavailable: the state machine does not answer; it may have started.
        """
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


async def _call(service: str, operation: str, method: Callable[..., T], parameters: Mapping[str, object]) -> T:
    def run() -> T:
        with storage_errors():
            return method(**parameters)

    return await retry_once(lambda: invoke(AwsCall(service, operation, parameters), run))
