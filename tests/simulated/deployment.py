"""Compactions from end to end in one loop: the real route, workers and definition of the state machine, and a table in memory.

The queue and the state machine are simulated. Time is the loop's virtual time.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import httpx
import pytest
from botocore.exceptions import ClientError

from functions.jobs import get
from functions.sessions import compact
from functions.workers import compaction_step, compactions
from spass.core.ids import AgentName, MessageId, SessionId, TenantId, UserId, new_id
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall
from spass.core.time import Deadline, timestamp
from spass.sessions.compaction.jobs import CompactionJobs
from spass.sessions.compaction.steps import CompactionSteps
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, store_body
from spass.sessions.session import Session, decode_session
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, Put
from spass.testing.aws import MemoryAws
from spass.testing.bucket import MemoryBucket
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.testing.gateway import ScriptedServices
from spass.testing.model import ScriptedModel
from spass.testing.state_machine import StateMachine
from spass.testing.table import MemoryTable
from spass.web.app import create_app
from spass.web.services import Services
from tests.functions.gateway import write_operators_files
from tests.simulated.aws import COMPACTION_MACHINE, JOB_TARGETS

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_stepfunctions import SFNClient

T = TypeVar("T")
Work = Callable[[Services, Mapping[str, Any], Deadline], Awaitable[Json]]

EPOCH: Final = 1_800_000_000.0
AGENT: Final = AgentName("plain")
USER: Final = UserId("ada")
# The settings of the queue in infra/stacks/data.py: seconds until it delivers a failed message again, and its deliveries.
_VISIBILITY_SECONDS: Final = 60.0
_MAX_RECEIVES: Final = 20
STEP_SECONDS: Final = 570.0


@dataclass(slots=True)
class CallFaults:
    """The AWS calls of all processes, in order. ``faults`` maps the numbers of calls to faults. ``watch`` is called after each
    write."""

    faults: Mapping[int, Fault] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    watch: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Invocation(FaultPlan):
    """One process: an invocation of a function. Its calls run in the loop, without threads, because the clock of the loop is
    virtual. Calls of other processes may run in between."""

    in_threads = False

    points: CallFaults = field(kw_only=True)
    role: str = field(kw_only=True)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        await asyncio.sleep(0.001)
        try:
            return await FaultPlan.around(self, call, run)
        finally:
            if call.operation not in ("GetItem", "Query"):
                self.points.watch()

    def next_fault(self, call: ServiceCall) -> Fault | None:
        fault = self.points.faults.get(len(self.points.calls))
        self.points.calls.append(f"{self.role} {call.operation}")
        return fault

    async def run_call(self, run: PendingCall[T]) -> T:
        return await run()


class StepFailed(Exception):
    """Raised when an invocation ends without an answer."""


class SimulatedDeployment(MemoryAws):
    """The gateway's functions, their queue and their state machine. ``model`` answers for all models. If ``played`` is False,
    messages stay in the queue."""

    played = True

    def __init__(self, folder: Path) -> None:
        super().__init__(JOB_TARGETS, self.clock)
        self.points = CallFaults()
        self.model = ScriptedModel("Ada moves to Berlin on 3 May.")
        self.services = ScriptedServices(write_operators_files(folder), self.model, self)
        self.services.compaction_jobs = CompactionJobs(self.clock)
        self.services.compaction_steps = CompactionSteps(self.services.summarizer, self.clock)
        self.app = create_app([compact.router, get.router], self.services)
        self.executions: dict[str, asyncio.Task[None]] = {}
        self.failed_executions: list[str] = []
        self.dead_letters: list[str] = []
        self._deliveries: set[asyncio.Task[None]] = set()

    def clock(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    @property
    def store(self) -> TenantStore:
        return self.for_tenant(TenantId("demo"))

    def begin_anew(self, points: CallFaults) -> None:
        """Empty the stores and the caches. This is faster than a new deployment."""
        self.points = points
        for cache in ("cascade", "calls", "places", "summarizer"):
            self.services.__dict__.pop(cache, None)
        self.services.compaction_steps = CompactionSteps(self.services.summarizer, self.clock)
        self.table, self.bucket = MemoryTable(self.clock), MemoryBucket(self.clock)
        for client in ("_table_client", "_s3"):
            self.__dict__.pop(client, None)
        for collection in (self.executions, self.failed_executions, self.dead_letters, self._deliveries):
            collection.clear()

    @cached_property
    def _sqs(self) -> "SQSClient":
        return cast("SQSClient", self)

    @cached_property
    def _states(self) -> "SFNClient":
        return cast("SFNClient", self)

    def send_message(self, *, QueueUrl: str, MessageBody: str, **_: str) -> dict[str, Any]:  # noqa: N803 (boto3's names)
        if QueueUrl == JOB_TARGETS.queue:  # an audit record that was not written to the table
            return {}
        assert QueueUrl == JOB_TARGETS.compaction_queue
        if not self.played:
            return {}
        delivery = asyncio.create_task(self._deliver(MessageBody))
        self._deliveries.add(delivery)
        return {}

    def start_execution(self, *, stateMachineArn: str, name: str, input: str) -> dict[str, Any]:  # noqa: N803 (boto3's names)
        assert stateMachineArn == JOB_TARGETS.compaction_machine
        if name in self.executions:
            raise ClientError({"Error": {"Code": "ExecutionAlreadyExists", "Message": ""}}, "StartExecution")
        self.executions[name] = asyncio.create_task(self._execute(json.loads(input)))
        return {}

    async def settled(self) -> None:
        """Wait until all messages are handled and all executions have ended."""
        while running := [task for task in (*self._deliveries, *self.executions.values()) if not task.done()]:
            await asyncio.wait(running)
        for task in (*self._deliveries, *self.executions.values()):
            task.result()

    async def step(self, step: str, job: str, **more: Json) -> Json:
        """Invoke a step as a late retry does, and return its answer."""
        return await self._invoked(step, compaction_step.work, {"step": step, "tenant": "demo", "job": job, **more})

    async def message(self, *bodies: str) -> Json:
        """Send a batch to the worker of the queue and return its answer."""
        records = [
            {"messageId": f"m{number}", "body": body, "attributes": {"ApproximateReceiveCount": "1"}}
            for number, body in enumerate(bodies)
        ]
        return await self._invoked("queue", compactions.work, {"Records": records})

    async def _deliver(self, body: str) -> None:
        for _ in range(_MAX_RECEIVES):
            try:
                answer = await self.message(body)
            except StepFailed:
                answer = None
            if answer == {"batchItemFailures": []}:
                return
            await asyncio.sleep(_VISIBILITY_SECONDS)
        self.dead_letters.append(body)

    async def _execute(self, arguments: Mapping[str, str]) -> None:
        machine = StateMachine(COMPACTION_MACHINE, lambda event: self._invoked(event["step"], compaction_step.work, event))
        if not await machine.run(arguments):
            self.failed_executions.append(arguments["job"])

    async def _invoked(self, role: str, work: Work, event: Mapping[str, Any]) -> Json:
        with inject(Invocation(points=self.points, role=role)):
            try:
                return await work(self.services, event, Deadline.after(STEP_SECONDS))
            except (Crash, Exception) as error:
                raise StepFailed from error

    async def try_send(
        self, method: str, path: str, *, user: str = USER, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response | None:
        """Send a request. Return None if the process crashes."""
        sent = {"Authorization": "Bearer demo-token", "SPASS-User-Id": user, **(headers or {})}
        transport = httpx.ASGITransport(self.app)
        with inject(Invocation(points=self.points, role="route")):
            async with httpx.AsyncClient(transport=transport, base_url="https://gateway.test") as client:
                try:
                    return await client.request(method, path, headers=sent, content=content)
                except Crash:
                    return None

    async def send(
        self, method: str, path: str, *, user: str = USER, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send a request to a process that does not crash."""
        answer = await self.try_send(method, path, user=user, content=content, headers=headers)
        assert answer is not None
        return answer

    async def try_compact(self, session: SessionId, headers: Mapping[str, str] | None = None) -> httpx.Response | None:
        """Request a compaction. Return None if the process crashes."""
        return await self.try_send("POST", compact_path(session), headers=headers)

    async def compact(
        self, session: SessionId, headers: Mapping[str, str] | None = None, *, content: bytes = b""
    ) -> httpx.Response:
        return await self.send("POST", compact_path(session), content=content, headers=headers)

    def stored(self) -> list[Item]:
        """Return all items but the places of requests in progress, unordered."""
        return [item for item in self.table.items() if item["sk"] != "LIMIT"]

    async def session(self, turns: int = 3, *, keep_last: int = 2, strategy: str = "manual", user: UserId = USER) -> SessionId:
        """Store a session with ``turns`` turns, each with a tool call."""
        at = timestamp(self.clock())
        session = Session(SessionId(new_id("ses")), AGENT, user, "Moving", at, at, strategy, keep_last, True)  # type: ignore[arg-type]
        seq = 1
        with self.quiet():
            for number in range(turns):
                turn = _turn(number, seq, self.clock())
                body = await store_body(self.store, session.id, turn)
                await self.store.table.write(Put(keys.session_turn(self.store.tenant, session.id, seq), body))
                seq = turn.next_seq
            head = session.attributes() | {"next_seq": seq}
            await self.store.table.write(Put(keys.session_head(self.store.tenant, session.id), head))
            entry = Put(keys.user_session(self.store.tenant, user, AGENT, session.id), decode_session(dict(head)).entry())
            await self.store.table.write(entry)
        return session.id

    async def head(self, session: SessionId) -> Session:
        with self.quiet():
            item = await self.store.table.get(keys.session_head(self.store.tenant, session))
        assert item is not None
        return decode_session(item)

    async def history(self, session: SessionId) -> list[StoredMessage]:
        """Return all stored messages. Assert that their numbers have no gaps and agree with the head."""
        with self.quiet():
            turns = await load_turns(self.store, session, 1)
        messages = [message for turn in turns for message in turn.messages]
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        assert (await self.head(session)).message_count == len(messages)
        return messages

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Run the test's own calls without faults and without numbers."""
        with inject(Invocation(points=CallFaults(), role="test")):
            yield


def compact_path(session: SessionId) -> str:
    return f"/a1/agents/{AGENT}/sessions/{session}/compact"


def _turn(number: int, seq: int, now: float) -> TurnRecord:
    call = ToolCall(f"call_{number}", "calculator", '{"expression":"1+1"}')
    contents = [
        Message(Role.USER, f"question {number}"),
        Message(Role.ASSISTANT, "", (call,)),
        Message(Role.TOOL, '{"value":2}', (), call.id),
        Message(Role.ASSISTANT, f"answer {number}"),
    ]
    messages = [StoredMessage(MessageId(new_id("msg")), seq + n, timestamp(now), message) for n, message in enumerate(contents)]
    return TurnRecord(new_id("turn"), tuple(messages), TokenUsage(10, 5), 2, FinishReason.STOP)


@contextmanager
def loop_time() -> Iterator[None]:
    """Take the time of day from the running loop. Deadlines use the real clock, because the loop's time advances by hours."""

    def now() -> float:
        return EPOCH + asyncio.get_running_loop().time()

    clock = SimpleNamespace(time=now, monotonic=time.monotonic, time_ns=lambda: int(now() * 1e9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.core.time.time", clock)
        patch.setattr("spass.core.ids.time", clock)
        yield


@contextmanager
def simulated_deployment(folder: Path, *, played: bool = True) -> Iterator[SimulatedDeployment]:
    """Yield a new deployment in the loop's time. If ``played`` is False, the test invokes the steps."""
    with loop_time():
        deployment = SimulatedDeployment(folder)
        deployment.played = played
        yield deployment
