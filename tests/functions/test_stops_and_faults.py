"""Turns that are stopped while calls of AWS fail: each is recorded once or not at all, its stream says which, nothing of it runs
on, and the same request then leads to exactly one turn. Time is virtual.

``SPASS_SEED=7 pytest …`` runs one stop only.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spass.core.ids import AgentName, UserId
from spass.journal.head import StreamState, read_head, stream_digest
from spass.sessions.record import TurnRecord
from spass.store.invocation import ServiceCall
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Fault, inject
from tests.functions.stopped_turns import SlowCommits, StoppedChats
from tests.sampling import SOAK
from tests.simulated.chats import AGENT, USER, Answer, Process, virtual_clocks
from tests.stream_grammar import answer_text, of_type, parse_events
from tests.unit.virtual_time import VirtualLoop

STOPS: Final = 2000 if SOAK else 80
SEEDS: Final = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else list(range(STOPS))
FAULTS: Final = (Fault.THROTTLE, Fault.LOST_REPLY, Fault.TIMEOUT, Fault.REPEATED)


@dataclass
class FaultyCalls(SlowCommits):
    """A process whose calls fail at random. The table calls once more before it reports a failure."""

    odds: float = 0.0
    rng: random.Random = field(default_factory=random.Random)

    def next_fault(self, call: ServiceCall) -> Fault | None:
        self.calls.append(call)
        return self.rng.choice(FAULTS) if self.rng.random() < self.odds else None


def test_a_turn_stopped_while_calls_fail_is_recorded_once_or_not_at_all(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ends: Counter[str] = Counter()

    async def stop_all() -> None:
        chats = StoppedChats(tmp_path)
        for seed in SEEDS:
            try:
                ends[await stop_with_faults(chats, seed)] += 1
            except BaseException as error:
                error.add_note(f"SPASS_SEED={seed}")
                raise

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, virtual_clocks():
        runner.run(stop_all())
    for end, count in ends.items():
        record_property(f"stops with faults, {end}", count)
    assert len(SEEDS) == 1 or ends.keys() >= {"cancelled", "stop", "error", "refused"}


async def stop_with_faults(chats: StoppedChats, seed: int) -> str:
    """Stop a turn at a random moment, check everything, and return how it ended."""
    rng, answer = chats.begin(seed), Answer()
    process = FaultyCalls(seconds=rng.random(), odds=rng.choice([0.0, 0.4]), rng=rng)
    entries = [{"role": ("user", "assistant")[at % 2], "content": "x" * 5000} for at in range(rng.choice([0, 6]))]
    messages = [*entries, {"role": "user", "content": "And now?"}]
    body = {"message_id": "m-1", "session_id": "chat", "messages": messages}
    turn = asyncio.create_task(chats.post(body, process=process, answer=answer))
    await asyncio.sleep(rng.choice([0.02, 1.0, 5.0]) * rng.random())
    while not turn.done() and (await chats.elsewhere.stop("m-1")).status == 404:
        await asyncio.sleep(0.01)
    process.odds = rng.choice([0.2, 0.6, 0.8])
    await turn
    assert chats.work.running == 0, "a call of a model or a tool is still running"
    end = await check_end(chats, answer)
    await asyncio.sleep(LEASE_SECONDS + 1)  # a failed release leaves a hold, which expires
    chats.slow_model.steps = 1
    (done,) = of_type(parse_events((await chats.post(body)).body), "done")
    (recorded,) = await turns(chats)
    assert recorded.answer.id == done["message"]["id"]
    assert all(session.hold is None for session in chats.sessions())
    return end


async def check_end(chats: StoppedChats, answer: Answer) -> str:
    """Assert that the turn is recorded if and only if its journal is done. Return how it ended for its client."""
    recorded = await turns(chats)
    if answer.status != 200:
        assert answer.status == 503
        assert recorded == []
        return "refused"
    events = parse_events(answer.body)
    with inject(Process()):
        head = await read_head(chats.store, stream_digest(UserId(USER), AgentName(AGENT), "m-1"))
    assert head is not None
    assert (head.state is StreamState.DONE) == bool(recorded)
    if events[-1]["type"] == "error":
        # The reply to the commit may be lost. Then the client repeats the request and gets the turn.
        assert events[-1]["error"]["code"] == "storage_unavailable"
        return "unknown" if recorded else "error"
    (turn,) = recorded
    assert turn.answer.message.content == answer_text(events)
    assert (await chats.follow("m-1")).body == answer.body
    return str(turn.finish_reason)


async def turns(chats: StoppedChats) -> list[TurnRecord]:
    """Return the records of the turn in all sessions."""
    stored = [turn for session in chats.sessions() for turn in await chats.turns(session.id)]
    return [turn for turn in stored if turn.messages[0].message.content == "And now?"]
