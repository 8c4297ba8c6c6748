"""Streams, runs, ticks, pauses and sweeps race on one managed agent, while calls fail and processes crash.

At no time two runs are active. In the end each accepted message was read by one turn, whose answer is in the mailbox once, and
each tick has one run however often it was delivered. In some races the agent is deleted, and nothing of it is left.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Final

from spass.aws.job_targets import JobTargets
from spass.core.errors import AgentNotFound, SessionBusy, SpassError
from spass.core.events import Event, InferenceStarted, TurnStarted
from spass.core.jobs import Tick, job_of
from spass.core.messages import Message
from spass.core.time import Deadline, timestamp
from spass.managed.deletion import delete_agent
from spass.managed.mailbox import INLINE_BYTES
from spass.managed.records import ManagedAgent, RunStatus, RunTrigger, read_agent
from spass.managed.records import Schedule as RunSchedule
from spass.store import keys
from spass.store.swap import commit
from spass.store.writes import Equals, Item, Update
from spass.tenancy.config import GatewayConfig
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, FaultPlan, inject
from tests.simulated.managed_world import OWNER, RUNS_QUEUE, TENANT, TOKEN, ManagedWorld
from tests.simulated.schedule import EPOCH, MANY_FAULTS, NO_FAULTS, Schedule, run_schedule
from tests.simulated.scripted_turns import answer_in_pieces, managed_runs
from tests.simulated.seeds import Record, run_seeds, seeded

CLIENTS: Final = 8
WORKERS: Final = 3
RACE_SECONDS: Final = 60.0
FINAL: Final = ("succeeded", "failed", "skipped")
MUST_HAPPEN: Final = (
    "succeeded",
    "failed",
    "skipped",
    "refused",
    "lost",
    "agent_paused",
    "ticks that ran",
    "ticks that were skipped",
)
TICKED: Final = RunSchedule("rate(1 minute)", input="Tick.")


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
        self.codes: Counter[str] = Counter()
        self.padding = ""
        self.trespasses: list[str] = []
        self.is_over = False
        super().__init__(MemoryAws(JobTargets(queue="jobs", runs_queue=RUNS_QUEUE), self.schedule.now), self.schedule.now)
        self.aws.table.watch = self._watch
        self.serve(*managed_runs(self._respond, self.aws, _config(), self.schedule.now))

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
        yield TurnStarted()
        await load()
        yield InferenceStarted(1)
        async for event in answer_in_pieces(self.schedule, lambda: ("answer to ", question), fails=0.05):
            yield event

    async def race(self, agent: ManagedAgent) -> None:
        """Run all clients, and workers beside them."""
        self.schedule.fault_rates = MANY_FAULTS
        workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        work = (self._send_stream, self._queue_run, self._tick)
        clients = [client(agent, number) for number in range(CLIENTS) for client in work]
        await asyncio.gather(*clients, self._stop_some(agent), self._pause_some(agent), self._sweep_some())
        await self.schedule.calm()
        if (await self.agent(agent)).paused:
            await self._pause(agent)
        await self._pass_hours(agent)
        stored = self.mailbox(agent)
        if any(status == "pending" for _, _, status, _ in stored):
            run = await self.run(agent, None, self.plan())
            assert run.startswith("run_"), run
            await self._pass_hours(agent)
        self.is_over = True
        await asyncio.gather(*workers)

    async def race_with_deletion(self, agent: ManagedAgent) -> None:
        """Delete the agent while others use it. Afterwards nothing of it is left."""
        self.schedule.fault_rates, self.padding = MANY_FAULTS, "x" * INLINE_BYTES
        workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        clients = [client(agent, number) for number in range(4) for client in (self._send_stream, self._queue_run, self._tick)]
        await asyncio.gather(*clients, self._stop_some(agent), self._delete_some(agent), self._delete_some(agent))
        self.is_over = True
        await asyncio.gather(*workers)
        await self.schedule.calm()
        for _ in range(10):
            await asyncio.sleep(3 * 3600)
            await self.sweep()
            with suppress(AgentNotFound, SessionBusy):  # a run that was never sent is active until the sweep sends it
                await self._delete(agent)
            while await self.work(self.plan()):
                pass
        await asyncio.sleep(24 * 3600)
        await self.sweep()
        await self.settle()
        assert self.trespasses == []
        assert [item for item in self.aws.table.items() if agent.id in str(item) or "#SES#" in str(item["pk"])] == []
        assert self.pending_work() == []
        assert self.aws.bucket.keys == []

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
            reading = await self.stream(agent, content + self.padding, self.schedule.process(), key=key)
            if reading.frames:
                self.accepted.add(content)
                return
            self.codes[reading.failure or ""] += 1
            if reading.failure == "session_busy":
                self.refused += 1
            elif key is None:
                return

    async def _queue_run(self, agent: ManagedAgent, number: int) -> None:
        """Put a message, and then ask for a run, with an input of its own or without."""
        content = f"message {number}"
        await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
        sent = await self.send(agent, content + self.padding, self.schedule.process())
        if isinstance(sent, str):
            self.codes[sent] += 1
        else:
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

    async def _pause_some(self, agent: ManagedAgent) -> None:
        for _ in range(2):
            await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
            with inject(self.schedule.process()), suppress(SpassError, Crash):
                await self._pause(agent)

    async def _pause(self, agent: ManagedAgent) -> None:
        """Pause the agent, or continue it."""
        found = await read_agent(self.store, OWNER, agent.id)
        values = {"paused": not found.paused, "version": found.version + 1}
        change = Update(keys.managed_agent(TENANT, found.id), set=values, when=Equals("version", found.version))
        await commit(self.store, [change])

    async def _sweep_some(self) -> None:
        for _ in range(2):
            await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
            with suppress(SpassError, Crash):
                await self.sweep(self.schedule.process())

    async def _delete_some(self, agent: ManagedAgent) -> None:
        for _ in range(4):
            await asyncio.sleep(self.schedule.random_delay(RACE_SECONDS))
            with inject(self.schedule.process()), suppress(SpassError, Crash):
                await self._delete(agent)

    async def _delete(self, agent: ManagedAgent) -> None:
        await delete_agent(self.store, OWNER, agent.id, None, Deadline.after(60), self.schedule.now)


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


def run_race(seed: int) -> Counter[str]:
    """Return how often happened what must happen."""
    race = RunRace(seed)

    async def story() -> ManagedAgent:
        agent = await race.create(schedule=TICKED)
        await race.race(agent)
        await check(race, agent)
        await race.check_line()
        return agent

    runs = race.stored_runs(run_schedule(race.schedule, story))
    ticks = Counter(run.status for run in runs if run.trigger is RunTrigger.SCHEDULE)
    return (
        race.codes
        + Counter(run.status.value for run in runs)
        + Counter(
            {
                "refused": race.refused,
                "lost": sum((run.error or {}).get("code") == "turn_lost" for run in runs),
                "ticks that ran": ticks[RunStatus.SUCCEEDED],
                "ticks that were skipped": ticks[RunStatus.SKIPPED],
            }
        )
    )


@seeded(20, in_soak=5000)
def test_streams_runs_and_ticks_that_race_answer_each_message_once(seeds: Sequence[int], record_property: Record) -> None:
    counts = run_seeds(seeds, run_race, record_property)
    assert len(seeds) == 1 or not [name for name in MUST_HAPPEN if not counts[name]]


def run_deletion(seed: int) -> Counter[str]:
    race = RunRace(seed)

    async def story() -> None:
        await race.race_with_deletion(await race.create(schedule=TICKED))

    run_schedule(race.schedule, story)
    return race.codes


@seeded(14, in_soak=1015)
def test_a_deletion_that_races_leaves_nothing(seeds: Sequence[int], record_property: Record) -> None:
    codes = run_seeds(seeds, run_deletion, record_property)
    assert {"session_busy", "agent_not_found"} <= codes.keys() or len(seeds) == 1
