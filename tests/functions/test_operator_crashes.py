"""Crash anywhere in the run of an operator: each AWS call crashes before, crashes after, gets no reply, or is throttled.

A run is recorded once with its state, or neither is. Repeated as a client does, it leads to one answer, one session, one state.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from spass.core.messages import FinishReason, Role, TokenUsage, ToolCallDelta
from spass.models.errors import BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.keys import Key
from spass.store.leases import LEASE_SECONDS
from spass.store.writes import Item, Put, Value
from spass.testing.faults import Fault
from tests.functions.test_crashes import FAULTS, OUTAGES
from tests.sampling import SOAK, sampled
from tests.simulated.chats import Answer, Chats, Process, virtual_clocks
from tests.stream_grammar import of_type, parse_events

pytestmark = pytest.mark.anyio

MODEL_SECONDS: Final = 22.0
KINDS: Final = (
    "first run",
    "later run",
    "question",
    "streamed question",
    "first stream",
    "later stream",
    "stored state",
    "compaction",
)
EARLIER: Final = {"later run": 1, "later stream": 1, "stored state": 1, "compaction": 6}
"""The number of runs before a run of a kind."""
STATE: Final = "Two ships are in."
_AGENT: Final = "name: watch\nkind: operative\nmodel: small\nsystem_prompt: Watch.\ntools: [memory_store]\n"
_USAGE: Final = TokenUsage(10, 5)


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncIterator[Chats]:
    with virtual_clocks(stop_poll=15.0):
        yield Chats(tmp_path, {"watch": _AGENT})


@dataclass
class OperatorRun:
    """One run of the operator ``watch``, and the number of ``earlier`` ones."""

    chats: Chats
    kind: str
    path: str = "/a1/agents/watch/chat"
    body: dict[str, Any] = field(default_factory=lambda: {"message": "hello"})
    headers: dict[str, str] = field(default_factory=lambda: {"idempotency-key": "key-1"})
    earlier: int = 0

    @classmethod
    async def world(cls, chats: Chats, kind: str) -> list[Item]:
        """Run what precedes a run of ``kind``, and return the items that it left."""
        run = cls.prepare(chats, kind, ())
        for number in range(run.earlier):
            answer = await chats.send("POST", "/a1/agents/watch/chat", {"message": f"earlier {number}"})
            assert answer.status == 200, answer.body
        return chats.items()

    @classmethod
    def prepare(cls, chats: Chats, kind: str, world: Sequence[Item]) -> "OperatorRun":
        """Return a run of ``kind`` by a new worker over the items ``world``."""
        chats.begin_anew()
        for item in world:
            chats.aws.table.write(write=Put(Key(str(item["pk"]), str(item["sk"])), _attributes(item)))
        run = cls(chats, kind, earlier=EARLIER.get(kind, 0))
        chats.model.script = run.answer
        match kind:
            case "question" | "streamed question":
                run.path, run.body = "/v1/ask", {"input": "hello", "agent": "watch", "stream": kind != "question"}
            case "first stream" | "later stream":
                run.path, run.headers = "/c1/agents/watch/chat", {}
                run.body = {"message_id": "m-1", "messages": [{"role": "user", "content": "hello"}]}
        return run

    async def answer(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        """Act as the model. A run takes longer than the time between two renewals."""
        last = request.messages[-1]
        if not request.tools:
            yield ChatDelta("A summary.", finish_reason=FinishReason.STOP, usage=_USAGE)
        elif self.kind == "compaction" and last.content == "hello" and "summary" not in str(request.messages):
            raise BackendContextLength("too long")
        elif self.kind == "stored state" and last.content == "hello":
            arguments = json.dumps({"key": "state", "content": STATE})
            yield ChatDelta(tool_calls=(ToolCallDelta(0, "call_1", "memory_store", arguments),))
            yield ChatDelta(finish_reason=FinishReason.TOOL_CALLS, usage=_USAGE)
        else:
            yield ChatDelta("Hel")
            await asyncio.sleep(MODEL_SECONDS if last.content == "hello" else 0.1)
            yield ChatDelta("lo.", finish_reason=FinishReason.STOP, usage=_USAGE)

    async def send(self, process: Process | None = None) -> Answer:
        return await self.chats.send("POST", self.path, self.body, headers=self.headers, process=process)

    async def repeat(self) -> Answer:
        """Repeat the request to another worker until it is answered."""
        self.chats.replace_worker()
        for _ in range(LEASE_SECONDS):
            answer = await self.send()
            if answer.status == 200:
                assert answer.is_whole
                if not answer.is_stream or of_type(parse_events(answer.body), "done"):
                    return answer
            else:
                assert answer.status in (409, 503), answer.body
                await asyncio.sleep(float(answer.headers["retry-after"]))
        raise AssertionError("the run still fails")

    async def check(self) -> bool:
        """Check that answer and state are stored together or not at all. Return whether they are."""
        recorded = await self.recorded()
        assert recorded in (0, 1)
        state = self.state()
        if state is None:
            assert (recorded, self.earlier) == (0, 0)
            return False
        stored = json.loads(state["state"]) if "state" in state else None
        expected = STATE if self.kind == "stored state" else "hello"
        assert ((stored.get("input") if isinstance(stored, dict) else stored) == expected) == bool(recorded)
        assert state["version"] == self.earlier + recorded
        return bool(recorded)

    async def check_end(self, answer: Answer) -> None:
        """Check that there is one answer, one state and one session, and that further repetitions change nothing."""
        assert await self.check()
        (live,) = [session for session in self.chats.sessions() if session.archived_at is None]
        state = self.state()
        assert state is not None
        assert (state["session"], live.operator, live.hold) == (live.id, "watch", None)
        assert len(self.chats.sessions()) == 1 + (self.kind == "compaction")
        again = await self.send()
        assert _content(again) == _content(answer)
        assert await self.recorded() == 1

    async def recorded(self) -> int:
        """Return the number of turns that answer the message."""
        turns = [turn for session in self.chats.sessions() for turn in await self.chats.turns(session.id)]
        own = [stored.message for turn in turns for stored in turn.messages]
        return len([message for message in own if message.role is Role.USER and message.content == "hello"])

    def state(self) -> dict[str, Any] | None:
        """Return the item of the operator."""
        states: list[Any] = [item for item in self.chats.items() if item["sk"] == "STATE"]
        assert len(states) <= 1
        return states[0] if states else None


def _attributes(item: Item) -> dict[str, Value]:
    return {name: value for name, value in item.items() if name not in ("pk", "sk")}


def _content(answer: Answer) -> object:
    if answer.is_stream:
        (done,) = of_type(parse_events(answer.body), "done")
        return done
    return answer.json


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_has_one_answer_and_one_state_if_any_call_fails(
    chats: Chats, kind: str, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    world = await OperatorRun.world(chats, kind)
    run, clean = OperatorRun.prepare(chats, kind, world), Process()
    await run.check_end(await run.send(clean))
    faults = [*FAULTS, *OUTAGES] if SOAK else FAULTS
    recorded_at_once = 0
    tries = sampled([*itertools.product(range(len(clean.calls)), faults)], 4)
    for point, (fault, times) in tries:
        run = OperatorRun.prepare(chats, kind, world)
        try:
            await run.send(Process(fault, at=point, times=times))
            recorded_at_once += await run.check()
            await run.check_end(await run.repeat())
        except Exception as error:
            error.add_note(f"{fault} x{times} at {point} of {len(clean.calls)}: {clean.calls[point].operation}")
            raise
        capsys.readouterr()
    assert 0 < recorded_at_once < len(tries)
    record_property("points_tried", len(tries))


async def test_a_run_that_dies_after_its_commit_is_answered_from_the_record(chats: Chats) -> None:
    world = await OperatorRun.world(chats, "later run")
    run, clean = OperatorRun.prepare(chats, "later run", world), Process()
    await run.send(clean)
    commits = [point for point, call in enumerate(clean.calls) if call.operation == "TransactWriteItems"]
    run = OperatorRun.prepare(chats, "later run", world)
    dead = await run.send(Process(Fault.CRASH_AFTER, at=commits[-1]))
    assert (dead.status, await run.check()) == (0, True)
    requests = len(chats.model.requests)
    answer = await run.repeat()
    assert (answer.headers["idempotency-replayed"], len(chats.model.requests)) == ("true", requests)
