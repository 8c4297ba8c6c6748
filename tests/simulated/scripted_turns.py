"""The events of scripted agents, and the services that run them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from spass.agents.driver import ShortenHistory
from spass.agents.engine import NOTHING_GIVEN, Engine, History
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import SpassError, UpstreamError
from spass.core.events import (
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    TurnFinished,
)
from spass.core.memory import Memory
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall
from spass.core.time import Clock
from spass.jobs.dispatch import Handler
from spass.jobs.runs import runs_handler
from spass.managed.schedules import ScheduleWriter
from spass.managed.ticks import Ticks
from spass.runs.managed_runs import ManagedRuns
from spass.runs.managed_worker import RunWorker
from spass.runs.service import Runs
from spass.sessions.service import Sessions
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Tokens
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.tools.grants import Grants
from tests.simulated.schedule import NO_FAULTS, Schedule

_CALL: Final = ToolCall("call_1", "calculator", '{"expression":"1+1"}')


async def call_calculator(seconds: float = 0.0) -> AsyncGenerator[Event, None]:
    """Let the model call a tool that takes some time."""
    yield InferenceFinished(Message(Role.ASSISTANT, "", (_CALL,)), FinishReason.TOOL_CALLS)
    yield ToolCallStarted(_CALL)
    if seconds:
        await asyncio.sleep(seconds)
    result = Message(Role.TOOL, '{"value":2}', (), _CALL.id)
    yield ToolCallFinished(ToolOutcome(_CALL, {"expression": "1+1"}, {"value": 2}, result, duration_ms=3))


def answer_with(text: str, usage: TokenUsage | None = None) -> Iterator[Event]:
    """End a turn with this answer."""
    yield InferenceFinished(Message(Role.ASSISTANT, text), FinishReason.STOP)
    yield TurnFinished(FinishReason.STOP, usage or TokenUsage())


async def answer_in_pieces(schedule: Schedule, pieces: Callable[[], Sequence[str]], fails: float) -> AsyncGenerator[Event, None]:
    """Answer in pieces, and sometimes call a tool first, take long, or fail."""
    rng, step = schedule.rng, 1
    if rng.random() < 0.3:
        async for event in call_calculator(schedule.random_delay(3.0)):
            yield event
        step = 2
        yield InferenceStarted(2)
    texts = pieces()
    longest = 60.0 if rng.random() < 0.1 else 4.0
    for piece in texts:
        await asyncio.sleep(schedule.random_delay(longest))
        yield Token(piece, step)
    if schedule.fault_rates is not NO_FAULTS and rng.random() < fails:
        yield Failed(UpstreamError("No."))
        return
    for event in answer_with("".join(texts)):
        yield event


LoadHistory: TypeAlias = Callable[[], Awaitable[Sequence[Message]]]
"""Return the messages before the new one."""
Respond: TypeAlias = Callable[[str, LoadHistory, ShortenHistory], AsyncGenerator[Event, None]]
"""Yield the events of a turn that answers a message."""


class ScriptedEngine(Engine):
    """Run ``respond`` as the agent."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond

    def check(self, scope: Scope, spec: AgentSpec) -> BaseAgent:
        return spec.build()

    def run(
        self,
        scope: Scope,
        spec: AgentSpec,
        message: str,
        history: History | None = None,
        *,
        given: AgentContext = NOTHING_GIVEN,
        nested_in: Grants | None = None,
        memory: Memory | None = None,
    ) -> AsyncGenerator[Event, None]:
        assert history is not None
        return self._respond(message, history.history, history.shorten)


def managed_runs(respond: Respond, aws: MemoryAws, config: GatewayConfig, clock: Clock) -> tuple[ManagedRuns, Handler]:
    """Return the services of runs whose agents ``respond``, and the handler of their queue."""
    spec = AgentSpec(name="orchestrator", model="talker")
    sessions = Sessions(Cascade(config), lambda: (_ for _ in ()).throw(AssertionError), clock=clock)
    runs = ManagedRuns(lambda _scope, _agent: spec, Runs(ScriptedEngine(respond), lambda: sessions, config, clock), clock)
    ticks = Ticks(lambda: ScheduleWriter(lambda: aws.schedules, clock), clock)
    return runs, runs_handler(RunWorker(runs, ticks, Tokens(config)), render_error)


def render_error(error: SpassError) -> Mapping[str, Json]:
    return {"code": error.code, "message": error.message}
