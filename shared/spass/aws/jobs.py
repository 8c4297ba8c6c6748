"""The queues of SQS and the state machine of Step Functions, through boto3."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import ClientError

from spass.aws.error_translation import call_service
from spass.aws.job_targets import JobTargets
from spass.core.errors import StorageUnavailable
from spass.core.ids import JobId, TenantId
from spass.core.jobs import Job, WorkKind, body_of, kind_of
from spass.core.traceparent import current_traceparent
from spass.store.invocation import retry_once
from spass.store.jobs import MAX_DELAY_SECONDS, TenantJobs

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_stepfunctions import SFNClient

T = TypeVar("T")


@dataclass
class AwsJobs(TenantJobs):
    """Send jobs of one tenant."""

    sqs: "Callable[[], SQSClient]"
    states: "Callable[[], SFNClient]"
    targets: JobTargets
    tenant: TenantId

    async def send(self, job: Job, *, delay: int = 0) -> None:
        if job.tenant != self.tenant:
            raise PermissionError("the job belongs to another tenant")
        await self.send_body(kind_of(job), body_of(job, current_traceparent()), delay=delay)

    async def send_body(self, kind: WorkKind, body: str, *, delay: int = 0) -> None:
        targets = self.targets
        queues = {
            WorkKind.COMPACTIONS: targets.compaction_queue,
            WorkKind.RUNS: targets.runs_queue,
            WorkKind.FILES: targets.queue,
        }
        url = queues[kind]
        if url is None:
            raise StorageUnavailable("This deployment has no queue for this job.")
        # SQS delivers the messages of a tenant with few of them before the messages of one with a backlog.
        group = hashlib.sha256(self.tenant.encode()).hexdigest()
        message: dict[str, object] = {"QueueUrl": url, "MessageBody": body, "MessageGroupId": group}
        if delay:
            message["DelaySeconds"] = min(delay, MAX_DELAY_SECONDS)
        await retry_once(lambda: call_service("sqs", "SendMessage", self.sqs().send_message, message))

    async def start_compaction(self, job: JobId) -> None:
        """Start an execution with the name of the job, so that a second start has no effect."""
        machine = self.targets.compaction_machine
        if machine is None:
            raise RuntimeError("this deployment has no state machine for compactions")
        traceparent = current_traceparent()
        carried = {"traceparent": traceparent} if traceparent is not None else {}
        work = json.dumps({"tenant": self.tenant, "job": job, **carried})
        parameters = {"stateMachineArn": machine, "name": job, "input": work}
        try:
            await retry_once(lambda: call_service("states", "StartExecution", self.states().start_execution, parameters))
        except ClientError as error:
            if error.response["Error"]["Code"] != "ExecutionAlreadyExists":
                raise
