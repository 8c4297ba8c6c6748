"""Crash anywhere: each AWS call of a run of a managed agent crashes before, crashes after, gets no reply, or is throttled.

The client repeats its request, the queue delivers again, and the sweep looks after what is left. Then each message was answered
once, no answer is stored twice, nothing is active, and the run's stream is whole for all who read it.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from spass.core.messages import FinishReason, Role, TokenUsage, ToolCallDelta
from spass.managed.records import ManagedAgent, RunStatus, RunTrigger, Schedule
from spass.models.errors import AttemptFailed
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Fault
from tests.functions.managed_runs import ManagedGateway
from tests.functions.test_crashes import FAULTS
from tests.sampling import SOAK, sampled
from tests.simulated.chats import PausedProcess, Process, virtual_clocks, wait_while_paused
from tests.simulated.managed_world import VISIBILITY_SECONDS, Reading

pytestmark = pytest.mark.anyio

KINDS: Final = (
    "first message",
    "message with a key",
    "queued",
    "queued with an input",
    "tools",
    "model error",
    "stopped",
    "stopped in the queue",
    "message in between",
    "scheduled",
    "scheduled with a message",
    "scheduled, delivered five times",
    "scheduled, two workers",
)
OUTAGES: Final = [(fault, times) for fault in (Fault.LOST_REPLY, Fault.THROTTLE, Fault.REPEATED) for times in (3, 5, 8, 13)]
MODEL_SECONDS: Final = 22.0
"""Longer than the time between two renewals."""
USAGE: Final = TokenUsage(10, 5)
SCHEDULE: Final = Schedule("rate(1 hour)", input="Report.")
TICK: Final = "2026-12-01T08:00:00Z"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ManagedGateway]:
    with virtual_clocks(stop_poll=6.5):
        yield ManagedGateway(tmp_path)


@dataclass
class Faulty:
    """Processes of which one has a fault at call number ``at`` of them all. ``calls`` are the calls of all."""

    fault: Fault | None = None
    at: int = 0
    times: int = 1
    processes: list[Process] = field(default_factory=list)

    def next(self) -> Process:
        """Return the next process."""
        made = sum(len(process.calls) for process in self.processes)
        left = self.times - max(0, made - self.at)
        process = Process(self.fault if left > 0 else None, at=max(0, self.at - made), times=max(1, left))
        self.processes.append(process)
        return process

    @property
    def operations(self) -> list[str]:
        return [call.operation for process in self.processes for call in process.calls]


@dataclass
class RunOfAgent:
    """A run of ``kind``, from the request to its end, with faults."""

    gateway: ManagedGateway
    kind: str
    agent: ManagedAgent
    sent: list[str] = field(default_factory=list)
    is_disturbed: bool = True

    @classmethod
    async def prepare(cls, gateway: ManagedGateway, kind: str) -> "RunOfAgent":
        gateway.begin_anew()
        run = cls(gateway, kind, await gateway.create(tools=("calculator",), schedule=SCHEDULE))
        gateway.model.script = run.answer
        if kind != "first message":
            run.is_disturbed = False
            await run.send_stream("earlier", Process())
            run.is_disturbed = True
        return run

    async def answer(self, request: ChatRequest, _context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        """Act as the model."""
        await wait_while_paused()
        if not self.is_disturbed:
            yield ChatDelta("ok", finish_reason=FinishReason.STOP, usage=USAGE)
            return
        if self.kind == "tools" and request.messages[-1].role is not Role.TOOL:
            calls = tuple(ToolCallDelta(n, f"call_{n}", "calculator", f'{{"expression": "{n}+1"}}') for n in range(2))
            yield ChatDelta("I compute. ", calls, FinishReason.TOOL_CALLS, USAGE)
            return
        yield ChatDelta("Hel")
        await asyncio.sleep(MODEL_SECONDS)
        if self.kind == "model error":
            raise AttemptFailed("broken")
        yield ChatDelta("lo.", finish_reason=FinishReason.STOP, usage=USAGE)

    async def send_stream(self, content: str, process: Process, key: str | None = None) -> Reading:
        if content not in self.sent:
            self.sent.append(content)
        return await self.gateway.stream(self.agent, content, process, key=key)

    async def attempt(self, faults: Faulty) -> None:
        """Make the request, and let a worker take its message."""
        others = asyncio.create_task(self._disturb())
        if self.is_scheduled:
            await self._tick(faults)
        elif "queue" in self.kind:
            self.sent.append("hello")
            await self.gateway.send(self.agent, "hello", Process())
            own_input = "Go on." if "input" in self.kind else None
            await self.gateway.run(self.agent, own_input, faults.next())
            await self.gateway.work(faults.next())
        else:
            await self.send_stream("hello", faults.next(), "key-1" if "key" in self.kind else None)
        await others

    @property
    def is_scheduled(self) -> bool:
        return self.kind.startswith("scheduled")

    async def _tick(self, faults: Faulty) -> None:
        """Let the schedule send a tick, and a worker, or two at once, take it."""
        if "message" in self.kind:
            self.sent.append("hello")
            await self.gateway.send(self.agent, "hello", Process())
        two_workers = "two workers" in self.kind
        self.gateway.tick(self.agent, TICK, times=5 if "five times" in self.kind else 2 if two_workers else 1)
        others = [self.gateway.work(Process())] if two_workers else []
        await asyncio.gather(self.gateway.work(faults.next()), *others)

    async def _disturb(self) -> None:
        """Do meanwhile what belongs to the kind."""
        if self.kind == "message in between":
            await asyncio.sleep(5)
            if isinstance(await self.gateway.send(self.agent, "and this", Process()), str):
                return
            self.sent.append("and this")
        elif self.kind.startswith("stopped"):
            await asyncio.sleep(0 if "queue" in self.kind else 2.5)
            for run in self.gateway.stored_runs(self.agent):
                if not run.status.is_final:
                    await self.gateway.stop(self.agent, run.id)

    async def recover(self) -> None:
        """Let the client repeat, the queue deliver and the sweep look after the agent. Run what is still pending."""
        gateway, self.is_disturbed = self.gateway, False
        gateway.replace_worker()
        if "key" in self.kind:
            await self._repeat()
        await self._pass_hours()
        if any(status == "pending" for _, _, status, _ in gateway.mailbox(self.agent)):
            run = await gateway.run(self.agent, None, Process())
            assert run.startswith("run_"), run
            await self._pass_hours()

    async def _pass_hours(self) -> None:
        """Let the queue deliver and the sweep run until the agent is idle, and all leases expire."""
        gateway = self.gateway
        for _ in range(8):
            while await gateway.work(Process()):
                pass
            if (await gateway.agent(self.agent)).active_run is None and not gateway.queue:
                break
            await asyncio.sleep(1200)
            await gateway.sweep()
        await gateway.settle()
        await asyncio.sleep(LEASE_SECONDS)

    async def _repeat(self) -> None:
        """Repeat the request with its key until its run is over. A run whose worker died has failed."""
        for _ in range(2 * LEASE_SECONDS):
            reading = await self.send_stream("hello", Process(), "key-1")
            run = self.gateway.stored_runs(self.agent)[-1]
            if run.status.is_final and "hello" in [content for _, content, _, _ in self.gateway.mailbox(self.agent)]:
                assert reading.is_done == (run.status == "succeeded")
                return
            assert reading.error in ("turn_lost", "storage_unavailable", "idempotency_in_progress", "session_busy"), reading.error
            await asyncio.sleep(1)
        raise AssertionError("the message still fails")

    async def check(self) -> None:
        gateway, stored = self.gateway, [content for direction, content, _, _ in self.gateway.mailbox(self.agent)]
        if "key" not in self.kind and "hello" in self.sent and "hello" not in stored:
            self.sent.remove("hello")  # it was refused, or its request crashed before
        await gateway.check(self.agent, self.sent)
        await gateway.check_line()
        assert not any(status == "pending" for _, _, status, _ in gateway.mailbox(self.agent))
        if self.is_scheduled:
            ticks = [run.status for run in gateway.stored_runs(self.agent) if run.trigger is RunTrigger.SCHEDULE]
            assert ticks == [RunStatus.SUCCEEDED], "a tick is executed once, whatever fails"
            assert gateway.dead == []
        for run in gateway.stored_runs(self.agent):
            first, second = [await gateway.follow(self.agent, run.id) for _ in range(2)]
            assert first is not None
            assert second is not None
            assert (first.frames, first.error) == (second.frames, second.error)
            assert first.is_done == (run.status == "succeeded"), (run, first)


async def count_calls(gateway: ManagedGateway, kind: str) -> list[str]:
    run, faults = await RunOfAgent.prepare(gateway, kind), Faulty()
    await run.attempt(faults)
    await run.recover()
    await run.check()
    return faults.operations


@pytest.mark.parametrize("kind", KINDS)
async def test_each_message_is_answered_once_if_any_call_of_a_run_fails(
    gateway: ManagedGateway, kind: str, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = await count_calls(gateway, kind)
    tries = sampled([*itertools.product(range(len(calls)), [*FAULTS, *OUTAGES] if SOAK else FAULTS)], 4)
    for point, (fault, times) in tries:
        run = await RunOfAgent.prepare(gateway, kind)
        try:
            await run.attempt(Faulty(fault, point, times))
            await run.recover()
            await run.check()
        except Exception as error:
            error.add_note(f"{fault} x{times} at {point} of {len(calls)}: {calls[point]}")
            raise
        capsys.readouterr()
    record_property("points_tried", len(tries))


async def test_a_tick_is_answered_once_if_its_worker_pauses_beyond_its_lease(
    gateway: ManagedGateway, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker pauses before or after each of its calls. Meanwhile another one gets the tick, and records the turn."""
    calls = await count_calls(gateway, "scheduled")
    pauses = sampled([*itertools.product(range(len(calls)), (False, True))], 3)
    for point, after in pauses:
        run = await RunOfAgent.prepare(gateway, "scheduled")
        process = PausedProcess(at=point, after=after)
        gateway.tick(run.agent, TICK)
        working = asyncio.create_task(gateway.work(process))
        await process.paused.wait()
        await asyncio.sleep(VISIBILITY_SECONDS)
        await run.recover()
        process.resumed.set()
        await working
        await run.recover()
        try:
            await run.check()
        except Exception as error:
            error.add_note(f"paused {'after' if after else 'before'} {point} of {len(calls)}: {calls[point]}")
            raise
        capsys.readouterr()
    record_property("points_tried", len(pauses))
