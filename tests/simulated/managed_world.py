"""A managed agent from end to end in one loop: requests, the queue of runs and its workers over a table in memory.

Each request and each delivery runs in a process of its own, which may crash. Time is the loop's virtual time.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from spass.calls.scope import Scope
from spass.core.errors import SpassError
from spass.core.ids import ManagedAgentId, RunId, TenantId, UserId, new_id
from spass.core.jobs import Delivery, RunAgent, Tick, WorkKind, body_of, job_of
from spass.core.messages import Role
from spass.core.time import Clock, Deadline, timestamp
from spass.jobs.dispatch import Handler
from spass.journal.follower import FollowedStream
from spass.journal.frames import Chunk, EventId, Frame
from spass.journal.head import StreamHead, StreamState, read_head, stream_digest
from spass.managed import mailbox
from spass.managed.following import follow_run, stop_run
from spass.managed.records import Direction, MailboxMessage, ManagedAgent, MessageStatus, Run, find_agent, read_agent
from spass.managed.schedules import schedule_hash
from spass.managed.sweep import ManagedSweep
from spass.memory.state import read_state
from spass.runs.managed_runs import ManagedRuns
from spass.runs.service import Started
from spass.sessions.record import TurnRecord, load_turns
from spass.sessions.session import Session, decode_session
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.idempotency import IdempotentRequest
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, Put
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, FaultPlan, inject
from tests.simulated.scripted_turns import render_error
from tests.unit.scopes import scope_of

TENANT: Final = TenantId("demo")
OWNER: Final = UserId("ana")
TOKEN: Final = "demo-user"
RUNS_QUEUE: Final = "runs"
VISIBILITY_SECONDS: Final = 960.0
MAX_RECEIVES: Final = 3
WORKER_SECONDS: Final = 870.0


@dataclass(eq=False)
class QueuedMessage:
    """A message of the queue. It is delivered again at ``visible_at`` unless it was deleted."""

    body: str
    visible_at: float
    receives: int = 0
    sent: float = 0.0


@dataclass
class Reading:
    """What one client has read of a stream: frames with their ids, or an error before the first one. ``failure`` is the code of
    the error with which the reading ended."""

    frames: list[tuple[EventId | None, Frame]] = field(default_factory=list)
    failure: str | None = None

    @property
    def is_done(self) -> bool:
        return bool(self.frames) and self.frames[-1][1].data == "[DONE]"

    @property
    def text(self) -> str:
        """Return the content of the chunks."""
        chunks = [json.loads(frame.data) for _, frame in self.frames if frame.event is None and frame.data != "[DONE]"]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    @property
    def error(self) -> str | None:
        """Return the code of the error event."""
        errors = [json.loads(frame.data)["error"]["code"] for _, frame in self.frames if frame.event == "error"]
        return errors[-1] if errors else self.failure


class ManagedWorld:
    """One managed agent of ``OWNER``. ``now`` returns seconds since the epoch."""

    def __init__(self, aws: MemoryAws, now: Clock) -> None:
        self.aws = aws
        self.now = now
        self.queue: list[QueuedMessage] = []
        self.dead: list[QueuedMessage] = []
        self.live: list[Started] = []
        aws.queues.on_message = self._receive

    def serve(self, runs: ManagedRuns, handler: Handler) -> None:
        """Let these services answer further requests and deliveries."""
        self.runs, self.handler = runs, handler

    @property
    def store(self) -> TenantStore:
        return self.aws.for_tenant(TENANT)

    def _receive(self, queue: str, body: str) -> None:
        if queue != RUNS_QUEUE:
            return
        self.queue.append(QueuedMessage(body, self.now() + self.aws.queues.last_delay))

    def scope(self, *, user: UserId | None = OWNER, admin: bool = False) -> Scope:
        route = "/v1/managed-agents/{id}/messages"
        return scope_of(self.store, user, token=TOKEN, admin=admin, request=new_id("req"), route=route)

    async def create(self, **values: Any) -> ManagedAgent:
        """Put an agent."""
        at = timestamp(self.now())
        same: dict[str, Any] = {"name": "helper", "agent": "orchestrator", "owner": OWNER, "token_id": TOKEN}
        agent = ManagedAgent(id=ManagedAgentId(new_id("agt")), created_at=at, updated_at=at, **{**same, **values})
        await self.store.table.write(keys_put(self.store, agent))
        return agent

    async def send(self, agent: ManagedAgent, content: str, plan: FaultPlan) -> MailboxMessage | str:
        """Put a message. Return it, or the code of the refusal, or ``crash``."""
        with inject(plan):
            try:
                return await mailbox.put(self.store, await read_agent(self.store, OWNER, agent.id), content, self.now())
            except SpassError as error:
                return error.code
            except Crash:
                return "crash"

    async def stream(
        self, agent: ManagedAgent, content: str, plan: FaultPlan, *, key: str | None = None, reading: Reading | None = None
    ) -> Reading:
        """Send a message with ``stream`` and read the answer to its end, or until the process crashes."""
        reading, request = reading if reading is not None else Reading(), None
        if key is not None:
            path = f"/v1/managed-agents/{agent.id}/messages"
            request = IdempotentRequest(TENANT, TOKEN, OWNER, "POST", path, key, f"{content} stream")
        with inject(plan):
            try:
                stream = await self.runs.stream(self.scope(), agent.id, content, render_error, request)
                if isinstance(stream, Started):
                    self.live.append(stream)
                    await self._read_live(stream, plan, reading)
                else:
                    await read_followed(stream, reading)
            except SpassError as error:
                reading.failure = error.code
            except Crash:
                reading.failure = "crash"
        return reading

    async def _read_live(self, live: Started, plan: FaultPlan, reading: Reading) -> None:
        frames = live.log
        assert frames is not None
        while await frames.wait_for_event(len(reading.frames)) and len(reading.frames) < len(frames.events):
            if plan.crashed:
                raise Crash
            index = len(reading.frames)
            reading.frames.append((frames.event_id(index), frames.events[index]))
        await live.wait()
        if plan.crashed:
            raise Crash

    async def run(self, agent: ManagedAgent, own_input: str | None, plan: FaultPlan) -> RunId | str:
        """Queue a run. Return its id, or the code of the refusal, or ``crash``."""
        with inject(plan):
            try:
                return (await self.runs.queue(self.scope(), agent.id, own_input)).id
            except SpassError as error:
                return error.code
            except Crash:
                return "crash"

    def tick(self, agent: ManagedAgent, at: str, times: int = 1) -> None:
        """Let the agent's schedule send a tick."""
        assert agent.schedule is not None
        tick = Tick(TENANT, agent.id, schedule_hash(agent.schedule), at)
        self.queue += (QueuedMessage(body_of(tick), self.now()) for _ in range(times))

    async def work(self, plan: FaultPlan) -> bool:
        """Deliver the next visible message to a worker. Return False if there is none."""
        visible = [message for message in self.queue if message.visible_at <= self.now()]
        if not visible:
            return False
        message = visible[0]
        message.receives += 1
        if message.receives > MAX_RECEIVES:
            self.queue.remove(message)
            self.dead.append(message)
            return True
        message.visible_at = self.now() + VISIBILITY_SECONDS
        with inject(plan):
            try:
                is_done = await self.deliver(message)
            except (SpassError, Crash):
                return True
        if is_done and not plan.crashed and message in self.queue:
            self.queue.remove(message)
        return True

    async def deliver(self, message: QueuedMessage) -> bool:
        """Let a worker handle ``message`` now."""
        job = job_of(json.loads(message.body))
        assert isinstance(job, RunAgent | Tick)
        delivery = Delivery("message", message.receives)
        return await self.handler(self.store, job, delivery, Deadline.after(WORKER_SECONDS))

    async def follow(
        self, agent: ManagedAgent, run: RunId, after: EventId | None = None, plan: FaultPlan | None = None
    ) -> Reading | None:
        """Follow a run to its end. Return None if there is nothing behind ``after``."""
        reading = Reading()
        with inject(plan or self.plan()):
            try:
                stream = await follow_run(self.scope(), agent.id, run, after)
                if stream is None:
                    return None
                await read_followed(stream, reading)
            except SpassError as error:
                reading.failure = error.code
            except Crash:
                reading.failure = "crash"
        return reading

    async def stop(self, agent: ManagedAgent, run: RunId, plan: FaultPlan | None = None) -> str:
        with inject(plan or self.plan()):
            try:
                return (await stop_run(self.scope(), agent.id, run)).status
            except SpassError as error:
                return error.code
            except Crash:
                return "crash"

    async def sweep(self, plan: FaultPlan | None = None) -> None:
        with inject(plan or self.plan()):
            await ManagedSweep(self.store, None, Deadline.after(60), self.now).run()

    def plan(self) -> FaultPlan:
        """Return the plan of a process without faults."""
        raise NotImplementedError

    async def agent(self, agent: ManagedAgent) -> ManagedAgent:
        """Return the agent as it is stored."""
        with inject(self.plan()):
            found = await find_agent(self.store, agent.id)
        assert found is not None
        return found

    def items(self, partition: str, prefix: str = "") -> list[Item]:
        """Return the items of a partition in the order of their keys."""
        found = [item for item in self.aws.table.items() if item["pk"] == partition and str(item["sk"]).startswith(prefix)]
        return sorted(found, key=lambda item: str(item["sk"]))

    def stored_runs(self, agent: ManagedAgent) -> list[Run]:
        """Return all runs, oldest first. Inputs are short."""
        items = self.items(keys.managed_partition(TENANT, agent.id), keys.RUN_PREFIX)
        return [replace(decode(Run, item), input=cast("str | None", item.get("text"))) for item in items]

    def mailbox(self, agent: ManagedAgent) -> list[tuple[str, str, str, str | None]]:
        """Return direction, content, status and run of all messages; contents are short."""
        items = self.items(keys.managed_partition(TENANT, agent.id), keys.MESSAGE_PREFIX)
        assert [item["seq"] for item in items] == [*range(1, len(items) + 1)]
        return [
            (str(item["direction"]), str(item["text"]), str(item["status"]), cast("str | None", item.get("run_id")))
            for item in items
        ]

    def pending_work(self) -> list[Item]:
        return self.items(keys.pending_partition(TENANT))

    def sessions(self) -> list[Session]:
        """Return the heads of all sessions, oldest first."""
        heads = [item for item in self.aws.table.items() if item["sk"] == "HEAD" and "#SES#" in str(item["pk"])]
        return sorted(map(decode_session, heads), key=lambda head: head.id)

    async def turns(self, agent: ManagedAgent) -> list[TurnRecord]:
        """Return the turns of the agent's session, if it has one."""
        with inject(self.plan()):
            state = await read_state(self.store, agent.operator)
            return [*await load_turns(self.store, state.session, 1)] if state is not None else []

    async def head(self, agent: ManagedAgent, run: RunId) -> StreamHead | None:
        with inject(self.plan()):
            return await read_head(self.store, stream_digest(OWNER, agent.stream_agent, run))

    def journal(self, head: StreamHead) -> list[Frame]:
        """Return the frames of the newest attempt that the journal has. Assert that they have no gaps."""
        prefix = keys.stream_chunk_prefix(head.digest, head.attempt)
        items = [item for item in self.aws.table.items() if str(item["sk"]).startswith(prefix)]
        chunks = [Chunk.of(item) for item in sorted(items, key=lambda item: str(item["sk"]))]
        assert [chunk.first for chunk in chunks] == [1, *(chunk.end for chunk in chunks[:-1])][: len(chunks)]
        return [frame for chunk in chunks for frame in chunk.frames]

    async def settle(self) -> None:
        """Wait until the streams of all processes have ended, those of crashed ones included."""
        for live in self.live:
            await live.wait()

    async def check_line(self) -> None:
        """Check that no run has a place or waits when all are over, after the sweep and the queue have had their time."""
        for _ in range(3):
            await self.sweep()
            while await self.work(self.plan()):
                pass
            await asyncio.sleep(VISIBILITY_SECONDS)
        places = self.items(keys.work_partition(WorkKind.RUNS))
        assert [item for item in places if item.get("count") or item.get("out")] == []
        assert self.items(keys.waiting_partition(TENANT, WorkKind.RUNS)) == []

    async def check(self, agent: ManagedAgent, sent: Sequence[str]) -> None:
        """Check what is stored of an agent whose work is over: ``sent`` are the messages that were accepted.

        No message is lost or delivered twice. Answers, turns and succeeded runs are the same.
        """
        stored, runs, turns = await self.agent(agent), self.stored_runs(agent), await self.turns(agent)
        assert stored.active_run is None
        assert [item for item in self.pending_work() if str(item["sk"]).startswith(keys.PENDING_RUN_PREFIX)] == []
        assert [session.id for session in self.sessions() if session.hold is not None and session.hold.live(self.now())] == []
        assert all(run.status.is_final for run in runs), runs
        box = self.mailbox(agent)
        of_user = [entry for entry in box if entry[0] == Direction.USER_TO_AGENT]
        assert sorted(entry[1] for entry in of_user) == sorted(sent)
        assert [entry[2:] for entry in of_user if (entry[2] == MessageStatus.PENDING) != (entry[3] is None)] == []
        answers = {entry[3]: entry[1] for entry in box if entry[0] == Direction.AGENT_TO_USER}
        succeeded = [run for run in runs if run.status == "succeeded"]
        assert answers.keys() == {run.id for run in succeeded}
        assert len(answers) == len(box) - len(of_user)
        expected = Counter[tuple[str, str]]()
        for run in succeeded:
            texts = [content for _, content, _, of_run in of_user if of_run == run.id]
            expected["\n\n".join([*texts, *([run.input] if run.input is not None else [])]), answers[run.id]] += 1
            head = await self.head(agent, run.id)
            assert head is None or head.state is StreamState.DONE
            assert head is None or self.journal(head)[-1].data == "[DONE]"
        assert Counter((turn.messages[0].message.content, _text_of_steps(turn)) for turn in turns) == expected


def _text_of_steps(turn: TurnRecord) -> str:
    """Return the text of all steps of a turn, as its stream shows it."""
    return "".join(stored.message.content for stored in turn.messages if stored.message.role is Role.ASSISTANT)


def keys_put(store: TenantStore, agent: ManagedAgent) -> Put:
    """Return the write of a new agent."""
    return Put(keys.managed_agent(store.tenant, agent.id), encode(agent))


async def read_followed(stream: FollowedStream, reading: Reading) -> None:
    """Read a followed stream to its end.

    Raises:
        SpassError: it ended with this error.
    """
    try:
        while await stream.wait_for_event(len(reading.frames)):
            if len(reading.frames) == len(stream.events):
                await stream.result()
                return
            event_id, frame = stream.events[len(reading.frames)]
            reading.frames.append((event_id, frame))
    finally:
        stream.cancel()
