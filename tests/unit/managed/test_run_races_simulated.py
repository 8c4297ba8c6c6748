"""Streams, runs and ticks race on one managed agent, under hundreds of schedules in which calls fail and processes crash.

At no time two runs are active. In the end each accepted message was read by one turn, whose answer is in the mailbox once, and
each tick has one run however often it was delivered.
``SPASS_SEED=7 pytest …`` runs one schedule only.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import cache
from typing import Final

import pytest

from spass.agents.spec import AgentSpec
from spass.agents.streams import Streams
from spass.aws.attributes import Item
from spass.aws.job_targets import JobTargets
from spass.core.effects import ToolOutcome
from spass.core.errors import UpstreamError
from spass.core.events import (
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
)
from spass.core.jobs import Tick, job_of
from spass.core.messages import FinishReason, Message, Role, ToolCall
from spass.core.time import timestamp
from spass.jobs.runs import runs_handler
from spass.managed.records import ManagedAgent, RunStatus, RunTrigger
from spass.managed.records import Schedule as RunSchedule
from spass.managed.run_turns import RunTurns
from spass.managed.runner import ManagedRuns
from spass.managed.schedules import ScheduleWriter
from spass.managed.ticks import Ticks
from spass.managed.worker import RunWorker
from spass.sessions.service import Sessions
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Tokens
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan
from tests.sampling import SOAK
from tests.simulated.managed_world import RUNS_QUEUE, TENANT, TOKEN, ManagedWorld, render_error
from tests.simulated.racing_chats import ScriptedEngine
from tests.simulated.schedule import EPOCH, MANY_FAULTS, NO_FAULTS, Schedule, run_schedule

SCHEDULES: Final = 5000 if SOAK else 150
SEEDS_PER_TEST: Final = 50
SEEDS: Final = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else []
SEED_RANGES: Final = [SEEDS] if SEEDS else [range(start, start + SEEDS_PER_TEST) for start in range(0, SCHEDULES, SEEDS_PER_TEST)]
CLIENTS: Final = 8
WORKERS: Final = 3
RACE_SECONDS: Final = 60.0
FINAL: Final = ("succeeded", "failed", "skipped")
MUST_HAPPEN: Final = ("succeeded", "failed", "skipped", "refused", "lost", "ticks that ran", "ticks that were skipped")
TICKED: Final = RunSchedule("rate(1 minute)", input="Tick.")
SPEC: Final = AgentSpec(name="orchestrator", model="talker")


@cache
def _config() -> GatewayConfig:
    tokens = [{"id": TOKEN, "sha256": "0" * 64}]
    return GatewayConfig.model_validate(
        {"tenants": [{"id": TENANT, "tokens": tokens}], "models": [{"name": "talker", "context_window": 8000}]}
    )


class RunRace(ManagedWorld):
    """Clients and workers of one agent. ``accepted`` are the messages that are certainly stored. ``trespasses`` are writes that
    must not happen."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed, NO_FAULTS)
        self.accepted: set[str] = set()
        self.refused = 0
        self.trespasses: list[str] = []
        self.is_over = False
        super().__init__(MemoryAws(JobTargets(queue="jobs", runs_queue=RUNS_QUEUE), self.schedule.now), self.schedule.now)
        self.aws.table.watch = self._watch
        clock, config = self.schedule.now, _config()
        sessions = Sessions(Cascade(config), lambda: (_ for _ in ()).throw(AssertionError), clock=clock)
        streams = Streams(ScriptedEngine(self._respond), sessions, config, clock)
        turns = RunTurns(lambda _scope, _agent: SPEC, streams, clock)
        ticks = Ticks(lambda: ScheduleWriter(lambda: self.aws.schedules, clock), clock)
        self.serve(ManagedRuns(turns), runs_handler(RunWorker(turns, ticks, Tokens(config)), render_error))

    def plan(self) -> FaultPlan:
        return self.schedule.process(without_faults=True)

    def _watch(self, before: Item | None, after: Item | None) -> None:
        """Note writes that no law allows."""
        if before is None or after is None:
            return
        sk = str(before["sk"])
        if sk == "AGENT" and "active_run" in before and "active_run" in after and before["active_run"] != after["active_run"]:
            self.trespasses.append(f"two runs at once: {before['active_run']!r} and {after['active_run']!r}")
        if sk.startswith("RUN#") and before["status"] in FINAL and before["status"] != after["status"]:
            self.trespasses.append(f"changed after its end: {before!r} {after!r}")
        if sk.startswith("MSG#") and before["status"] == "delivered" and before != after:
            self.trespasses.append(f"delivered twice: {before!r} {after!r}")

    async def _respond(
        self, question: str, load: Callable[[], Awaitable[Sequence[Message]]], _: object
    ) -> AsyncGenerator[Event, None]:
        """Act as the agent: answer in pieces, and sometimes call a tool first, take long, or fail."""
        schedule, rng = self.schedule, self.schedule.rng
        yield TurnStarted()
        await load()
        yield InferenceStarted(1)
        step = 1
        if rng.random() < 0.3:
            call = ToolCall("call_1", "calculator", '{"expression":"1+1"}')
            yield InferenceFinished(Message(Role.ASSISTANT, "", (call,)), FinishReason.TOOL_CALLS)
            yield ToolCallStarted(call)
            await asyncio.sleep(schedule.random_delay(3.0))
            result = Message(Role.TOOL, '{"value":2}', (), call.id)
            yield ToolCallFinished(ToolOutcome(call, {"expression": "1+1"}, {"value": 2}, result, duration_ms=3))
            step = 2
            yield InferenceStarted(2)
        longest = 60.0 if rng.random() < 0.1 else 4.0
        for piece in ("answer to ", question):
            await asyncio.sleep(schedule.random_delay(longest))
            yield Token(piece, step)
        if schedule.fault_rates is not NO_FAULTS and rng.random() < 0.05:
            yield Failed(UpstreamError("No."))
            return
        yield InferenceFinished(Message(Role.ASSISTANT, f"answer to {question}"), FinishReason.STOP)
        yield TurnFinished(FinishReason.STOP)

    async def race(self, agent: ManagedAgent) -> None:
        """Run all clients, and workers beside them."""
        self.schedule.fault_rates = MANY_FAULTS
        workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        work = (self._send_stream, self._queue_run, self._tick)
        clients = [client(agent, number) for number in range(CLIENTS) for client in work]
        await asyncio.gather(*clients, self._stop_some(agent))
        await self.schedule.calm()
        await self._pass_hours(agent)
        stored = self.mailbox(agent)
        if any(status == "pending" for _, _, status, _ in stored):
            run = await self.run(agent, None, self.plan())
            assert run.startswith("run_"), run
            await self._pass_hours(agent)
        self.is_over = True
        await asyncio.gather(*workers)

    async def _pass_hours(self, agent: ManagedAgent) -> None:
        """Let the queue deliver and the sweep run until the agent is idle and all leases have expired."""
        for _ in range(12):
            await asyncio.sleep(1300)
            await self.sweep()
            if (await self.agent(agent)).active_run is None and not self.queue:
                break
        await self.settle()
        await asyncio.sleep(100)

    async def _work(self) -> None:
        while not self.is_over:
            if not await self.work(self.schedule.process()):
                await asyncio.sleep(0.5 + self.schedule.rng.random())

    async def _send_stream(self, agent: ManagedAgent, number: int) -> None:
        """Send a message with a stream until it is accepted, at most four times. With a key, also if the outcome is unknown.

        Without a key, each attempt has a text of its own: one whose turn was refused leaves its message in the mailbox.
        """
        rng, content = self.schedule.rng, f"stream {number}"
        key = content if rng.random() < 0.5 else None
        for attempt in range(4):
            content = key or f"stream {number}.{attempt}"
            await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
            reading = await self.stream(agent, content, self.schedule.process(), key=key)
            if reading.frames:
                self.accepted.add(content)
                return
            if reading.failure == "session_busy":
                self.refused += 1
            elif key is None:
                return

    async def _queue_run(self, agent: ManagedAgent, number: int) -> None:
        """Put a message, and then ask for a run, with an input of its own or without."""
        content = f"message {number}"
        await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
        if not isinstance(await self.send(agent, content, self.schedule.process()), str):
            self.accepted.add(content)
        for attempt in range(3):
            await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
            own_input = f"input {number}.{attempt}" if self.schedule.rng.random() < 0.5 else None
            answer = await self.run(agent, own_input, self.schedule.process())
            if answer != "session_busy":
                return
            self.refused += 1

    async def _tick(self, agent: ManagedAgent, number: int) -> None:
        """Let the schedule send the tick of a minute, which the queue has once or several times."""
        await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
        self.tick(agent, minute_of(number), self.schedule.rng.choice([1, 1, 2, 5]))

    async def _stop_some(self, agent: ManagedAgent) -> None:
        for _ in range(4):
            await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
            runs = [run for run in self.stored_runs(agent) if not run.status.is_final]
            if runs:
                await self.stop(agent, self.schedule.rng.choice(runs).id, self.schedule.process())


def minute_of(number: int) -> str:
    """Return the scheduled time of the tick ``number``."""
    return timestamp(EPOCH + 60 * number)


async def check(race: RunRace, agent: ManagedAgent) -> None:
    assert race.trespasses == []
    stored = [content for direction, content, _, _ in race.mailbox(agent) if direction == "user_to_agent"]
    assert race.accepted <= set(stored)
    assert len(set(stored)) == len(stored), "a message is stored once"
    await race.check(agent, stored)
    ticked = [str(run.scheduled_for) for run in race.stored_runs(agent) if run.trigger is RunTrigger.SCHEDULE]
    given_up = {job.at for job in map(job_of, (json.loads(message.body) for message in race.dead)) if isinstance(job, Tick)}
    assert len(set(ticked)) == len(ticked), "a tick runs once"
    assert {*map(minute_of, range(CLIENTS))} - given_up <= set(ticked)
    assert not any(status == "pending" for _, _, status, _ in race.mailbox(agent))


@pytest.mark.parametrize("seeds", SEED_RANGES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_streams_runs_and_ticks_that_race_answer_each_message_once(
    seeds: Sequence[int], record_property: Callable[[str, object], None]
) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        race = RunRace(seed)

        async def story(race: RunRace = race) -> None:
            agent = await race.create(schedule=TICKED)
            await race.race(agent)
            await check(race, agent)
            await race.check_line()
            runs = race.stored_runs(agent)
            counts.update(run.status.value for run in runs)
            counts.update({"refused": race.refused, "lost": sum((run.error or {}).get("code") == "turn_lost" for run in runs)})
            ticks = [run.status for run in runs if run.trigger is RunTrigger.SCHEDULE]
            counts.update(
                {"ticks that ran": ticks.count(RunStatus.SUCCEEDED), "ticks that were skipped": ticks.count(RunStatus.SKIPPED)}
            )

        try:
            run_schedule(race.schedule, story)
        except BaseException as error:
            error.add_note(f"SPASS_SEED={seed}")
            raise
    assert len(seeds) < SEEDS_PER_TEST or not [name for name in MUST_HAPPEN if not counts[name]]
    record_property("schedules", len(seeds))
    for name, count in counts.items():
        record_property(name, count)
