"""Run random turns of every kind with failing tools, failing models and clients that leave, and compare events and audit."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final

import pytest

from spass.agents.availability import Availability
from spass.agents.engine import Engine
from spass.agents.spec import file_model
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.bus import AGENT_TURN_END, AGENT_TURN_START, INFERENCE_END, TOOL_CALL_END, EventBus
from spass.core.errors import StorageUnavailable, UpstreamError
from spass.core.events import Failed, TurnFinished
from spass.core.ids import AgentName, RequestId, SessionId, TenantId, UserId, new_id
from spass.core.messages import FinishReason, Json, TokenUsage, ToolCallDelta
from spass.metering.telemetry import Telemetry, Traces
from spass.models.errors import BackendUnavailable
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store import keys
from spass.store.writes import Item
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.testing.event_log import EventLog
from spass.testing.model import ScriptedModel
from spass.tools.base import Tool, ToolError
from tests.simulated.interpreter import InProcessSandbox
from tests.unit.tools.fakes import FakeReader, rag_with, toolbox_of

pytestmark = pytest.mark.anyio

RUNS: Final = 500
SECRET: Final = "planted-word-7391"
CONFIG: Final = GatewayConfig.model_validate(
    {
        "llm": {"retries": 0, "backends": [{"name": "main", "provider": "ollama", "supported_models": ["small", "vectors"]}]},
        "models": [
            {"name": "small", "context_window": 1000, "usd_per_mtok_in": "0.5", "usd_per_mtok_out": "1.5"},
            {"name": "vectors", "kind": "embedding", "dimensions": 8, "context_window": 256, "usd_per_mtok_in": "0.1"},
        ],
        "defaults": {"embedding_model": "vectors"},
    }
)
AGENTS: Final[Sequence[Mapping[str, Any]]] = (
    {"kind": "simple"},
    {"kind": "orchestrator", "tools": ["wild"]},
    {"kind": "orchestrator", "tools": ["wild"], "mode": "structured"},
    {"kind": "react", "tools": ["wild"]},
    {"kind": "native_openhands", "tools": ["wild"]},
    {"kind": "rlm", "tools": ["wild"]},
)
HOWS: Final = ("answer", "answer", "embed", "fail", "model fails", "slow", "storage fails", "crash", SECRET)


class Wild(Tool):
    """Ends as ``how`` says."""

    timeout: ClassVar[float] = 0.01
    calls: ClassVar[Calls]

    how: str

    async def run(self, scope: Scope, /) -> Json:
        match self.how:
            case "embed":
                await self.calls.embed(scope, [SECRET] * 3)
            case "fail":
                raise ToolError(f"Do not say {SECRET}.")
            case "model fails":
                raise UpstreamError(SECRET)
            case "slow":
                await asyncio.sleep(1)
            case "storage fails":
                raise StorageUnavailable(SECRET)
            case "crash":
                raise KeyError(SECRET)
        return {"result": SECRET}


@dataclass
class RandomModel:
    """A model that answers, calls tools, writes calls as text or fails, as ``random`` decides."""

    random: random.Random

    async def answer(self, _: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        dice = self.random.random()
        if dice < 0.1:
            raise BackendUnavailable(SECRET)
        yield ChatDelta("Let me see. ")
        await asyncio.sleep(0)
        if dice < 0.2:
            raise BackendUnavailable(SECRET)
        if dice < 0.25:
            await asyncio.sleep(0.005)
        usage = TokenUsage(self.random.randrange(1, 100), self.random.randrange(1, 100))
        if dice < 0.5:
            calls = tuple(self._call(index) for index in range(self.random.randrange(1, 5)))
            yield ChatDelta(tool_calls=calls, finish_reason=FinishReason.TOOL_CALLS, usage=usage)
            return
        how = json.dumps({"how": self.random.choice(HOWS)})
        written = self.random.choice(
            [
                f"\nAction: wild\nAction Input: {how}",
                f"\nTOOL: wild\nINPUT: {how}",
                f"\nFinal Answer: {SECRET}",
                f"\n{SECRET}",
                f"\n```python\nprint(wild(**{how}))\nFINAL('{SECRET}')\n```",
                f"\n```python\nprint(llm_batch(['{SECRET}'] * 3))\n```",
            ]
        )
        yield ChatDelta(written, finish_reason=FinishReason.STOP, usage=usage if dice < 0.9 else None)

    def _call(self, index: int) -> ToolCallDelta:
        name = self.random.choice(["wild"] * 5 + [SECRET])
        arguments = self.random.choice([json.dumps({"how": self.random.choice(HOWS)})] * 5 + [SECRET])
        return ToolCallDelta(index, f"call_{index}", name, arguments)


@dataclass
class RandomRuns:
    """Turns of random agents over the real engine, pipeline and tools, and a table in memory. One request makes one turn."""

    bus: EventBus
    random: random.Random

    def __post_init__(self) -> None:
        self.aws = MemoryAws()
        model = ScriptedModel(RandomModel(self.random).answer)
        router = Router(CONFIG.llm, CONFIG.models, lambda _: None, provider_of=lambda *_: model)
        self._cascade, reader = Cascade(CONFIG), FakeReader()
        Wild.calls = Calls(CONFIG, router, self._cascade)
        toolbox = toolbox_of(Wild, rag=rag_with(reader), cascade=self._cascade)
        self.engine = Engine(Wild.calls, toolbox, lambda: reader, self._cascade, Availability(InProcessSandbox))
        self.requests: list[RequestId] = []
        self.ends: Counter[str] = Counter()

    def scope(self) -> Scope:
        """Return the scope of a new request."""
        self.requests.append(RequestId(new_id("req")))
        identity = Identity(TenantId("acme"), SECRET, admin=False, allowed_models=("*",))
        caller = Caller(identity, UserId(SECRET), self.requests[-1], RequestId(SECRET), 0, "/a1/agents/{name}/chat")
        scope = Scope.for_request(caller, self.aws.for_tenant(identity.tenant), bus=self.bus)
        return scope.for_agent(AgentName("tester"), SessionId("ses_1"))

    async def run(self) -> None:
        """Run a turn whose client reads it to its end, or leaves: it stops reading, or its task is cancelled."""
        task = asyncio.create_task(self._read(leave_after=self.random.choice([None, None, self.random.randrange(8)])))
        if self.random.random() < 0.3:
            for _ in range(self.random.randrange(40)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            self.ends["cancelled"] += 1

    async def _read(self, leave_after: int | None) -> None:
        options = self.random.choice(AGENTS)
        fields = {"name": "tester", "model": "small", "system_prompt": SECRET, **options}
        if options["kind"] != "simple":
            fields["max_turns"] = self.random.randrange(1, 6)
        spec = file_model(options["kind"]).model_validate(fields).spec()
        async with aclosing(self.engine.run(self.scope(), spec, SECRET)) as events:
            number = 0
            async for event in events:
                if leave_after == number:
                    self.ends["left"] += 1
                    return
                if isinstance(event, (TurnFinished, Failed)):
                    self.ends[type(event).__name__] += 1
                number += 1

    async def tasks(self) -> set[asyncio.Task[Any]]:
        """Return the tasks that the turns left. A read of the settings outlives its turn, because the process shares it."""
        await self._cascade.effective(self.aws.for_tenant(TenantId("acme")))
        return asyncio.all_tasks()

    async def audit(self) -> Mapping[str, Item]:
        """Return the records of all requests by the ids of the calls."""
        table = self.aws.for_tenant(TenantId("acme")).table
        records = [
            record
            for request_id in self.requests
            for record in await table.query(keys.audit_partition(TenantId("acme"), request_id))
        ]
        return {str(record["request_id"]): record for record in records}


async def test_events_of_random_turns_are_paired_nested_and_equal_the_audit() -> None:
    bus, lines, tasks = EventBus(), list[Mapping[str, Json]](), asyncio.all_tasks()
    log, runs = EventLog(bus), RandomRuns(bus, random.Random(13))
    Telemetry("Spass/test", lines.append).subscribe(bus)
    Traces(lines.append).subscribe(bus)
    for _ in range(RUNS // 10):
        await asyncio.gather(*(runs.run() for _ in range(10)))
    assert await runs.tasks() == tasks, "a turn left a task"

    log.check()
    assert min(runs.ends[end] for end in ("TurnFinished", "Failed", "left", "cancelled")) > 20, runs.ends
    inferences, tools, turns = log.of(INFERENCE_END), log.of(TOOL_CALL_END), log.of(AGENT_TURN_END)
    records = await runs.audit()
    statuses = {end.call_id: end.status for end in inferences} | {end.call_id: end.status for end in tools}
    assert statuses == {call_id: record["status"] for call_id, record in records.items()}
    audited = [record for record in records.values() if record["kind"] != "tool"]
    assert sum(end.cost_usd for end in inferences) == sum(Decimal(str(record["cost_usd"])) for record in audited) > 0
    for name in ("prompt_tokens", "completion_tokens"):
        assert sum(getattr(end, name) for end in inferences) == sum(int(str(record[name])) for record in audited) > 0
    check_turns(log)

    assert {turn.kind for turn in turns} == {"simple", "orchestrator", "native_react", "native_openhands", "rlm"}
    assert SECRET not in repr(log.events)
    assert SECRET not in json.dumps(lines)
    written = Counter(str(line["event"]) for line in lines)
    assert written == Counter(
        inference_end=len(inferences), tool_call_end=len(tools), agent_turn_end=len(turns), trace=len(turns)
    )
    check_traces(log, lines)


def check_turns(log: EventLog) -> None:
    """Compare each turn with its own calls: every call is within a turn, and the turn has their number and cost."""
    calls = Counter(end.request_id for end in (*log.of(INFERENCE_END), *log.of(TOOL_CALL_END)))
    turns = {turn.request_id: turn for turn in log.of(AGENT_TURN_END)}
    assert calls.keys() <= turns.keys()
    assert all(start.input_chars == len(SECRET) for start in log.of(AGENT_TURN_START))
    for request_id, turn in turns.items():
        assert (turn.finish_reason is None) == (turn.error is not None)
        own = [end for end in log.of(INFERENCE_END) if end.request_id == request_id]
        assert turn.cost_usd == sum(end.cost_usd for end in own)
        assert turn.turns == sum(end.parent_request_id == request_id for end in own) or turn.error is not None


def check_traces(log: EventLog, lines: Sequence[Mapping[str, Any]]) -> None:
    """Check that each call is a span of its turn's line, and has ended."""
    spans = [(line["request_id"], span) for line in lines if line["event"] == "trace" for span in line["spans"]]
    inferences = [(end.request_id, end.call_id, end.parent_request_id, end.status) for end in log.of(INFERENCE_END)]
    tools = [(end.request_id, end.call_id, end.parent_request_id, end.status) for end in log.of(TOOL_CALL_END)]
    traced = [(request_id, span["call_id"], span["parent_id"], span["status"]) for request_id, span in spans]
    assert sorted(traced) == sorted(inferences + tools)
