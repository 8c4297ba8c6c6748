"""Edits whose child is hostile, hangs or dies with the gateway: the turn continues, and nothing is left running."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Final

import pytest

from spass.agents.registry import AgentRegistry
from tests.functions.edit_turns import AFTER, AGENTS, BEFORE, EditTurn, EditTurns, agent, exists
from tests.functions.gateway import Gateway
from tests.stream_grammar import Event, answer_text, of_type, read_events

ATTACKS: Final = {
    "socket": ("import socket; socket.socket()", "tried to do what no edit may do"),
    "fork": ("os.fork()", "tried to do what no edit may do"),
    "outside": ("open('../outside', 'w')", "tried to do what no edit may do"),
    "memory": ("bytearray(8 * 2**30)", "failed with MemoryError"),
    "disk": ("open('big', 'wb').write(bytes(2**25))", "failed with OSError"),
    "garbage": ("os.write(connection._output, b'garbage\\n')", "not part of an edit"),
    "flood": ("while True: os.write(connection._output, bytes(2**16))", "a line that is too long"),
    "questions": ("for _ in range(1000): connection.ask([{'role': 'user', 'content': edit.message}])", "8 model calls"),
    "end": ("os.abort()", "ended unexpectedly"),
}


@pytest.fixture
def edits(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EditTurns:
    edits = EditTurns(gateway, tmp_path)
    edits.watch_children(monkeypatch)
    return edits


def add_attack(edits: EditTurns, name: str, body: str) -> None:
    code = f"import os, time\n\ndef edit(edit, connection, root):\n    {body}\n    time.sleep(60)\n"
    edits.add_engine(name, code)


def run_side_by_side(edits: EditTurns, turns: list[EditTurn]) -> list[list[Event]]:
    gateway = edits.gateway
    replies = gateway.send_together(gateway.send_async("POST", turn.path, body=edits.body(turn)) for turn in turns)
    return [read_events(reply) for reply in replies]


def error_of_edit(events: list[Event]) -> tuple[str, str]:
    (call,) = [call for call in of_type(events, "tool_call") if call["tool"] == "aider_edit"]
    error = call["result"]["error"]
    return error["code"], error["message"]


def test_a_turn_continues_after_a_hostile_child(edits: EditTurns) -> None:
    turns = []
    for seed, (name, (body, _)) in enumerate(ATTACKS.items()):
        add_attack(edits, f"attack_{name}", body)
        turns.append(edits.prepare(seed, engine=f"attack_{name}", is_delegated=seed % 2 == 1))
    for turn, events, (_, message) in zip(turns, run_side_by_side(edits, turns), ATTACKS.values(), strict=True):
        code, reason = error_of_edit(events)
        assert (code, message in reason) == ("edit_failed", True), (turn.engine, reason)
        assert (of_type(events, "done")[0]["finish_reason"], answer_text(events)) == ("stop", "The end is near.")
        assert (turn.living_children(), turn.left_files(), turn.open_answers) == ([], [], 0)
        assert (edits.versions(turn), edits.text(turn)) == ([], BEFORE)
    (events,) = run_side_by_side(edits, [edits.prepare(99, engine="quick", is_delegated=False)])
    assert edits.text(edits.turns[99]) == AFTER


def test_an_edit_that_hangs_ends_after_its_time_and_the_turn_continues(edits: EditTurns) -> None:
    short = agent("coder", tools=["aider_edit", "calculator"], paths={"write": ["**"]}, editor={"timeout": 2})
    edits.gateway.services.agents = AgentRegistry([AGENTS[0], short])
    add_attack(edits, "asleep", "import signal; [signal.signal(number, signal.SIG_IGN) for number in (1, 2, 3, 15)]")
    child = edits.prepare(1, engine="asleep", is_delegated=False)
    model = edits.prepare(2, engine="quick", is_delegated=True)
    model.seconds_of_edit = 60.0
    for turn, events in zip((child, model), run_side_by_side(edits, [child, model]), strict=True):
        message = "The edit took longer than 2 s. Name fewer files, or ask for a smaller change."
        assert error_of_edit(events) == ("edit_timeout", message)
        (call,) = [call for call in of_type(events, "tool_call") if call["tool"] == "aider_edit"]
        assert 2000 <= call["duration_ms"] < 60_000
        assert answer_text(events) == "The end is near."
        assert (turn.living_children(), turn.left_files(), turn.open_answers) == ([], [], 0)
        assert edits.versions(turn) == []


CRASH: Final = """
    import asyncio, os, pathlib, signal
    from spass.testing.aws import MemoryAws
    from spass.sandbox import child_disk
    from tests.functions.edit_turns import EditTurns
    from tests.functions.gateway import Gateway

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    gateway = Gateway(pathlib.Path({folder!r}), loop, MemoryAws())
    edits = EditTurns(gateway, pathlib.Path({folder!r}))
    edits.add_engine("asleep", "import time\\n\\ndef edit(*_):\\n    time.sleep(60)\\n")
    turn = edits.prepare(1, engine="asleep" if {moment!r} == "at the start" else "aider", is_delegated=True)
    turn.seconds_of_edit = 60.0

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    class NotedChild(child_disk.ChildProcess):
        def send(self, line):
            super().send(line)
            print(self._process.pid, flush=True)
            if {moment!r} == "at the start":
                die()

    child_disk.ChildProcess = NotedChild

    async def die_later():
        await turn.moment("in the model of the edit").wait()
        die()

    loop.create_task(die_later())
    gateway.send("POST", turn.path, body=edits.body(turn))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("moment", ["at the start", "in the model"])
def test_a_gateway_that_is_killed_leaves_no_child_and_its_folder_is_removed(
    edits: EditTurns, tmp_path: Path, moment: str
) -> None:
    folder = tmp_path / "crashed"
    folder.mkdir()
    program = textwrap.dedent(CRASH).format(folder=str(folder), moment=moment)
    crashed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert crashed.returncode == -9, crashed.stderr
    group = int(next(line for line in crashed.stdout.splitlines() if line.isdigit()))
    give_up = time.monotonic() + 60
    while exists(group):
        assert time.monotonic() < give_up, "the child lives without its gateway"
        time.sleep(0.05)
    turn = edits.prepare(1, engine="quick", is_delegated=False)
    (orphan,) = (folder / "temporary-1").iterdir()
    orphan.rename(turn.folder / orphan.name)
    run_side_by_side(edits, [turn])
    assert (turn.left_files(), edits.text(turn)) == ([], AFTER)
