"""Schedules of managed agents on a started gateway, with the scheduler of the emulated AWS.

The emulator fires a ``rate(1 minute)`` 60 to 70 seconds after its entry was written. So the agents with such a schedule are
created first, and the other tests run while they wait.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import httpx
import pytest

from tests.e2e.conftest import WAIT_SECONDS, wait_until
from tests.e2e.managed_gateway import Managed, managed_gateway
from tests.functions.managed_agents import event_lines, read_frames

EVERY_MINUTE = "rate(1 minute)"
FIRES_SECONDS = 180.0
"""The emulator needs 70 seconds at most; a busy machine needs longer."""
SOON = timedelta(seconds=20)
EIGHT, NINE = "2030-01-31T08:00:00Z", "2030-01-31T09:00:00Z"


@dataclass(frozen=True)
class Ticking:
    """Agents whose schedules fire by themselves: every minute, every minute although it is paused, and once."""

    running: str
    paused: str
    once: str


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    with managed_gateway(tmp_path_factory.mktemp("ticks")) as managed:
        yield managed


@pytest.fixture(scope="module", autouse=True)
def ticking(managed: Managed) -> Ticking:
    paused = managed.create()
    for change in ({"paused": True}, {"schedule": {"expression": EVERY_MINUTE, "input": "Paused."}}):
        managed.send("PATCH", f"/{paused}", change).raise_for_status()
    running = scheduled(managed, "What is new?", EVERY_MINUTE)
    at = datetime.now(UTC) + SOON
    return Ticking(running, paused, scheduled(managed, "Only once.", f"at({at:%Y-%m-%dT%H:%M:%S})"))


def scheduled(managed: Managed, own_input: str | None, expression: str = "rate(1 hour)", **fields: object) -> str:
    schedule = {"expression": expression} if own_input is None else {"expression": expression, "input": own_input}
    return managed.create(schedule=schedule, **fields)


@pytest.mark.parametrize("trigger", ["message", "run", "schedule"])
def test_a_run_is_read_alike_by_everybody_and_after_every_event(managed: Managed, trigger: str) -> None:
    """Two readers follow it while the upstream waits. Each reader that resumes has the rest of the same stream."""
    question = f"hold {trigger}: 2+2"
    agent = scheduled(managed, question, agent="orchestrator", tools=["calculator"])
    (entry,) = managed.aws.entries(agent)
    managed.upstream.release.clear()
    with ThreadPoolExecutor(3) as pool:
        try:
            live = pool.submit(managed.stream, agent, question) if trigger == "message" else None
            if trigger == "run":
                managed.start_run(agent, input=question)
            elif trigger == "schedule":
                managed.aws.tick(entry, EIGHT)
            wait_until(lambda: managed.get(f"/{agent}/runs")["runs"])
            (run,) = managed.get(f"/{agent}/runs")["runs"]
            seen = [threading.Event() for _ in range(2)]
            readers = [pool.submit(managed.follow, agent, run["id"], seen=event) for event in seen]
            assert all(event.wait(WAIT_SECONDS) for event in seen)
        finally:
            managed.upstream.release.set()
    whole = readers[0].result()
    first, *others = [without_comments(reader.result()) for reader in (*readers, *([live] if live else []))]
    assert set(others) == {first}
    assert run["trigger"] == trigger
    assert [name for name, _ in read_frames(whole) if name] == ["tool_calls", "tool_result"]
    assert read_frames(whole)[-1] == (None, "[DONE]")
    ids = event_lines(whole)
    head = first.index(b"id: ")
    for last, following in pairwise(ids):
        rest = managed.follow(agent, run["id"], last)
        assert without_comments(rest) == first[:head] + first[first.index(b"id: %s\n" % following.encode()) :]
    over = managed.follow(agent, run["id"], ids[-1])
    assert (over.status_code, over.content) == (204, b"")


def without_comments(reply: httpx.Response) -> bytes:
    """Return the body without the comments that keep a silent connection open."""
    assert reply.status_code == 200, reply.text
    return b"".join(line for line in reply.content.splitlines(keepends=True) if not line.startswith(b":"))


def test_a_tick_takes_the_pending_messages_and_comes_once(managed: Managed) -> None:
    agent = scheduled(managed, "What is new?")
    (entry,) = managed.aws.entries(agent)
    managed.put_message(agent, "Wait for me.")
    for at in (EIGHT, EIGHT, NINE):
        managed.aws.tick(entry, at)
        wait_until(lambda: managed.aws.is_drained(entry))
    runs = managed.get(f"/{agent}/runs")["runs"]
    assert {(run["trigger"], run["scheduled_for"][:16]) for run in runs} == {("schedule", at[:16]) for at in (EIGHT, NINE)}
    assert len(runs) == 2
    assert len(managed.upstream.asked("Wait for me.\n\nWhat is new?")) == 1


def test_a_crash_between_the_table_and_the_scheduler_is_repaired_by_one_sweep(managed: Managed) -> None:
    missing, removed, deleted = (scheduled(managed, None) for _ in range(3))
    entries = {agent: managed.aws.entries(agent)[0] for agent in (missing, removed, deleted)}
    managed.send("PATCH", f"/{removed}", {"schedule": None}).raise_for_status()
    managed.send("DELETE", f"/{deleted}").raise_for_status()
    assert managed.aws.entries(removed) == managed.aws.entries(deleted) == []
    managed.aws.delete_entry(entries[missing])
    for agent in (removed, deleted):
        managed.aws.put_entry(entries[agent])
    swept = managed.aws.sweep()
    assert (swept["schedules"], swept["schedules_failed"]) == (3, 0)
    assert managed.aws.entries(removed) == managed.aws.entries(deleted) == []
    (repaired,) = managed.aws.entries(missing)
    for name in ("Name", "ScheduleExpression", "State", "Target"):
        assert repaired[name] == entries[missing][name]
    assert managed.aws.sweep()["schedules"] == 0
    assert managed.aws.entries(missing) == [repaired], "it was not written again"


def test_schedules_fire_by_themselves_until_their_agent_is_paused_or_deleted(managed: Managed, ticking: Ticking) -> None:
    """This test is the last one, because it waits."""
    for agent, status in ((ticking.once, "succeeded"), (ticking.running, "succeeded"), (ticking.paused, "skipped")):
        wait_until(lambda: has_ended(managed, agent), FIRES_SECONDS)  # noqa: B023 (called within the round)
        run = managed.get(f"/{agent}/runs")["runs"][-1]
        assert (run["trigger"], run["status"], run["error"]) == ("schedule", status, None)
        assert run["scheduled_for"].endswith(":00.000Z")
    assert managed.mailbox(ticking.running)[0] == ("agent_to_user", "About: What is new?", "delivered")
    assert managed.mailbox(ticking.once) == [("agent_to_user", "About: Only once.", "delivered")]
    assert managed.mailbox(ticking.paused) == []
    assert managed.aws.entries(ticking.once) == []

    (entry,) = managed.aws.entries(ticking.running)
    wait_until(lambda: managed.send("DELETE", f"/{ticking.running}").status_code == 200)
    assert managed.aws.entries(ticking.running) == []
    wait_until(lambda: managed.aws.is_drained(entry))
    before = len(managed.upstream.requests)
    managed.aws.tick(entry, EIGHT)
    wait_until(lambda: managed.aws.is_drained(entry))
    assert len(managed.upstream.requests) == before
    assert managed.send("GET", f"/{ticking.running}/runs").status_code == 404


def has_ended(managed: Managed, agent: str) -> bool:
    runs = managed.get(f"/{agent}/runs")["runs"]
    return bool(runs) and runs[-1]["finished_at"] is not None
