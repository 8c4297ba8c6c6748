"""Edits with real child processes that are stopped, or reach the deadline of their turn, at random moments: no process, no
folder, no open answer of a model and no version is left, and what was recorded is true.

``SPASS_SEED=7 pytest …`` runs one stop only.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from spass.calls.scope import Scope
from spass.core.time import Deadline
from spass.sessions.session import decode_session
from tests.functions.edit_turns import AFTER, BEFORE, EditTurn, EditTurns
from tests.functions.gateway import Gateway, Reply
from tests.functions.test_call_trees import flatten, get_calls
from tests.sampling import SOAK
from tests.stream_grammar import Event, of_type, read_events

STOPS: Final = 200 if SOAK else 70
SEEDS: Final = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else list(range(STOPS))
SIDE_BY_SIDE: Final = 8
MOMENTS: Final = (
    "sent",
    "in the model of an agent",
    "in the child",
    "in the child",
    "in the model of the edit",
    "in the model of the edit",
    "after the answer",
    "after the edit",
)
SECONDS: Final[ContextVar[float]] = ContextVar("seconds of a turn", default=600.0)


@dataclass
class Stop:
    """How one turn is ended. ``moment`` is None for a deadline after ``seconds``; else a client stops the turn, ``seconds`` after
    the moment."""

    turn: EditTurn
    moment: str | None
    seconds: float
    reply: Reply | None = None
    has_living_child: bool = False
    left: list[str] = field(default_factory=list)
    open_answers: int = 0

    @classmethod
    def of(cls, turn: EditTurn) -> "Stop":
        rng = turn.rng
        if rng.random() < 0.3:
            return cls(turn, None, rng.random() * (3.0 if turn.engine == "aider" else 1.5))
        moment = rng.choice(MOMENTS)
        longest = 0.6 if (moment, turn.engine) == ("in the child", "aider") else 0.15
        return cls(turn, moment, rng.random() * longest)

    async def run(self, gateway: Gateway, body: dict[str, Any]) -> None:
        """Run the turn and stop it. Note what is left in the moment in which its stream ends."""
        SECONDS.set(self.seconds if self.moment is None else 600.0)
        turn, stopping = self.turn, asyncio.create_task(self._stop(gateway))
        self.reply = await gateway.send_async("POST", turn.path, body=body)
        self.has_living_child = bool(turn.living_children())
        self.left = turn.left_files()
        self.open_answers = turn.open_answers
        stopping.cancel()
        await asyncio.wait({stopping})

    async def _stop(self, gateway: Gateway) -> None:
        if self.moment is None:
            return
        if self.moment != "sent":
            await self.turn.moment(self.moment).wait()
        await asyncio.sleep(self.seconds)
        while (await gateway.send_async("DELETE", f"{self.turn.path}/{self.turn.message_id}")).status == 404:
            await asyncio.sleep(0.01)

    @property
    def place(self) -> str:
        """Return how far the edit came."""
        reached = [name for name in dict.fromkeys(MOMENTS) if self.turn.has_reached(name)]
        return reached[-1] if reached else "before all"


@pytest.fixture
def edits(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EditTurns:
    edits = EditTurns(gateway, tmp_path)
    edits.watch_children(monkeypatch)
    monkeypatch.setattr("spass.runs.run._STOP_POLL_SECONDS", 0.03)
    # The deadline of a turn comes before the time limit of its edit, so that it is the deadline which ends the edit.
    monkeypatch.setattr("spass.tools.builtin.aider_edit._COMMIT_SECONDS", -60.0)
    monkeypatch.setattr(Scope, "streaming", property(lambda scope: replace(scope, deadline=Deadline.after(SECONDS.get()))))
    return edits


def test_an_edit_stopped_at_any_moment_leaves_nothing(edits: EditTurns, record_property: Callable[[str, object], None]) -> None:
    stops = [Stop.of(prepare(edits, seed)) for seed in SEEDS]
    edits.gateway.run(run_all(edits, stops))
    places: Counter[str] = Counter()
    for stop in stops:
        try:
            places[f"{check(edits, stop)}, {stop.place}"] += 1
        except BaseException as error:
            error.add_note(f"SPASS_SEED={stop.turn.number}")
            raise
    heads = [item for item in edits.gateway.items() if item["sk"] == "HEAD" and "#SES#" in str(item["pk"])]
    assert all(decode_session(dict(item)).hold is None for item in heads)
    assert len(heads) == len(stops)
    for place, count in places.items():
        record_property(place, count)
    assert len(SEEDS) == 1 or places.keys() >= {
        "cancelled, in the child",
        "cancelled, in the model of the edit",
        "deadline, in the model of the edit",
    }


def prepare(edits: EditTurns, seed: int) -> EditTurn:
    """Return a turn with Aider for each ninth seed, in a soak for each. A fifth of the edits waits for a person."""
    turn = edits.prepare(seed, engine="aider" if SOAK or seed % 9 == 0 else "quick", is_delegated=seed % 2 == 1)
    turn.editing_agent = "gated" if seed % 5 == 1 else "coder"
    return turn


async def run_all(edits: EditTurns, stops: Sequence[Stop]) -> None:
    places = asyncio.Semaphore(SIDE_BY_SIDE)

    async def run(stop: Stop) -> None:
        async with places:
            await stop.run(edits.gateway, edits.body(stop.turn))

    await asyncio.gather(*map(run, stops))


def check(edits: EditTurns, stop: Stop) -> str:
    """Assert that nothing is left, and that the versions, the history and the usage say the same. Return the finish reason."""
    turn, reply = stop.turn, stop.reply
    assert reply is not None
    assert (stop.has_living_child, stop.left, stop.open_answers) == (False, [], 0)
    events = read_events(reply)
    (done,), (usage,) = of_type(events, "done"), of_type(events, "usage")
    check_versions(edits, turn, events)
    history = edits.gateway.send(
        "GET", f"{turn.path.replace('/c1/', '/a1/').removesuffix('/chat')}/sessions/{done['session_id']}/messages"
    )
    results = {message["tool_call_id"]: message["content"] for message in history.json["messages"] if message["role"] == "tool"}
    assert results.keys() == {call["id"] for call in of_type(events, "tool_call") if call["parent_id"] is None}
    has_called = turn.has_reached("in the model of an agent")  # the audit does not know a request that has called nothing
    audited = flatten(get_calls(edits.gateway, reply.headers["spass-request-id"])) if has_called else []
    assert usage["usage"]["prompt_tokens"] == sum(call["prompt_tokens"] or 0 for call in audited)
    assert usage["usage"]["completion_tokens"] == sum(call["completion_tokens"] or 0 for call in audited)
    reason = str(done["finish_reason"])
    assert reason in {"stop", "deadline" if stop.moment is None else "cancelled"}
    return reason


def check_versions(edits: EditTurns, turn: EditTurn, events: Sequence[Event]) -> None:
    """Assert that there is a version, or an approval, if the stream shows one. A call that was cut off while it committed may
    have made it."""
    calls = [call for call in of_type(events, "tool_call") if call["tool"] == "aider_edit"]
    versions, session = edits.versions(turn), of_type(events, "done")[0]["session_id"]
    waiting = edits.gateway.send("GET", f"/a1/approvals?session_id={session}").json["approvals"]
    is_gated = turn.editing_agent == "gated"
    made = [approval["id"] for approval in waiting] if is_gated else versions
    shown = [call["result"]["approval_id" if is_gated else "version"] for call in calls if call["ok"]]
    if made != shown:
        assert (len(made), shown) == (1, [])
        assert turn.has_reached("after the edit"), "an edit that was stopped has changed something"
        assert [call["result"]["error"]["code"] for call in calls] == ["cancelled"]
    assert (versions if is_gated else waiting) == []
    assert [event["approval"]["id"] for event in of_type(events, "approval")] == (shown if is_gated else [])
    assert edits.text(turn) == (AFTER if versions else BEFORE)
