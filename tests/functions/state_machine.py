"""A simulated queue of compactions and a simulated state machine. Both run the real workers in the gateway's loop."""

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from botocore.exceptions import ClientError

from functions.workers import compaction_step, compactions
from spass.aws.clients import Aws
from spass.aws.job_targets import JobTargets
from spass.core.time import Deadline
from spass.testing.state_machine import StateMachine
from tests.functions.gateway import Gateway
from tests.simulated.aws import COMPACTION_MACHINE

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_stepfunctions import SFNClient

JOB_TARGETS: Final = JobTargets(compaction_queue="compactions", compaction_machine="machine")


@dataclass
class StateMachinePlayer:
    """The queue and the state machine of ``gateway``, without the pauses of the deployed machine. If ``stopped``, messages
    wait."""

    gateway: Gateway
    stopped: bool = False
    waiting: list[str] = field(default_factory=list)
    executions: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    deliveries: list["asyncio.Task[None]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gateway.services.aws = _AwsWithFakeQueues(self)

    def go_on(self) -> None:
        """Handle all waiting messages, and wait until their executions end."""
        self.stopped = False
        waiting, self.waiting = self.waiting, []
        self.gateway._loop.run_until_complete(self._handle_all(waiting))

    async def _handle_all(self, bodies: Sequence[str]) -> None:
        for body in bodies:
            self.enqueue(body)
        while running := [task for task in (*self.deliveries, *self.executions.values()) if not task.done()]:
            await asyncio.wait(running)

    def enqueue(self, body: str) -> None:
        if self.stopped:
            self.waiting.append(body)
        else:
            self.deliveries.append(asyncio.ensure_future(self._deliver(body)))

    def start(self, name: str, arguments: Mapping[str, str]) -> None:
        self.executions[name] = asyncio.ensure_future(self._execute(arguments))

    async def _deliver(self, body: str) -> None:
        event = {"Records": [{"messageId": "m", "body": body, "attributes": {"ApproximateReceiveCount": "1"}}]}
        assert await compactions.work(self.gateway.services, event, Deadline.after(60)) == {"batchItemFailures": []}

    async def _execute(self, arguments: Mapping[str, str]) -> None:
        def invoke(event: Mapping[str, str]) -> Awaitable[object]:
            return compaction_step.work(self.gateway.services, event, Deadline.after(60))

        await StateMachine(COMPACTION_MACHINE, invoke, wait=lambda _: asyncio.sleep(0)).run(arguments)


class _AwsWithFakeQueues(Aws):
    """The gateway's clients with a simulated queue and state machine. Threads call them."""

    def __init__(self, machine: StateMachinePlayer) -> None:
        shared = machine.gateway.aws
        super().__init__(table=shared._table, bucket=shared._bucket, job_targets=JOB_TARGETS)
        clients = _FakeClients(machine, machine.gateway._loop)
        self.__dict__ |= {"_table_client": shared._table_client, "_s3": shared._s3}
        self.__dict__ |= {"_sqs": cast("SQSClient", clients), "_states": cast("SFNClient", clients)}

    def connect(self) -> None:
        """Do nothing: these clients need no connection."""


@dataclass
class _FakeClients:
    """The calls of the SQS and Step Functions clients, passed on to the loop."""

    machine: StateMachinePlayer
    loop: asyncio.AbstractEventLoop
    names: set[str] = field(default_factory=set)

    def send_message(self, *, QueueUrl: str, MessageBody: str, **_: str) -> dict[str, Any]:  # noqa: N803 (boto3's names)
        assert QueueUrl == JOB_TARGETS.compaction_queue
        self.loop.call_soon_threadsafe(self.machine.enqueue, MessageBody)
        return {}

    def start_execution(self, *, stateMachineArn: str, name: str, input: str) -> dict[str, Any]:  # noqa: N803 (boto3's names)
        assert stateMachineArn == JOB_TARGETS.compaction_machine
        if name in self.names:
            raise ClientError({"Error": {"Code": "ExecutionAlreadyExists", "Message": ""}}, "StartExecution")
        self.names.add(name)
        self.loop.call_soon_threadsafe(self.machine.start, name, json.loads(input))
        return {}
