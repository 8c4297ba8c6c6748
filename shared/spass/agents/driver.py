"""Run an agent kind: perform its effects and emit the events of the turn.

The driver is the only place that emits turn events, enforces ``max_turns``, assembles model deltas and records a failure. After a
model call it resumes the kind before it records the reply: the kind's next effect decides what the reply's message is. So what is
recorded, streamed and returned cannot differ.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from spass.agents.kind_run import KindRun
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.nested_calls import NestedCalls
from spass.agents.reply_reader import ClientReplyReader, ReplyReader, give_ids
from spass.agents.transcript import Transcript
from spass.calls.scope import Scope
from spass.core.bus import AGENT_TURN_END, AGENT_TURN_START, EMPTY_BUS, EventBus
from spass.core.effects import Answer, AssistantReply, CallError, CallTools, Effect, Infer, Tell, ToolOutcome
from spass.core.errors import ContextLengthExceeded, InternalError, SpassError
from spass.core.events import (
    CallEvent,
    Event,
    Failed,
    Nested,
    Status,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnFinished,
    TurnStarted,
)
from spass.core.json import dump
from spass.core.messages import CUT_OFF, FinishReason, Json, Message, Role, ToolCall
from spass.llm.types import ChatDelta
from spass.tools.arguments import arguments_for_display

if TYPE_CHECKING:
    from spass.core.bus_events import AgentTurnEnd, AgentTurnStart

ShortenHistory: TypeAlias = Callable[[], Awaitable[Sequence[Message] | None]]
"""Return a shorter history, or None if there is none. The driver calls it at most once, when the provider reports that the
conversation is too long."""
CallToolsPerformer: TypeAlias = Callable[[Sequence[ToolCall]], AsyncGenerator[CallEvent, None]]
"""Execute tool calls side by side and yield their events as they happen. When it is closed, it cancels the calls."""


class Inference(Protocol):
    """Perform ``Infer``."""

    def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]: ...

    def begins_thinking(self, effect: Infer) -> bool: ...


class Driver:
    """Run the kinds of one scope. ``scope`` is that of the agent; its tally counts the cost and the tokens of the turn.

    ``client_tools`` is set for a client of chat completions, who reads the model's text unfiltered and refusals apart from it,
    and answers the calls of these tools: their pieces are events. A driver that ``is_nested`` runs within a call of another one:
    it gives each call an id of its own, because the calls of both are in one stream.
    """

    def __init__(
        self,
        infer: Inference,
        call_tools: CallToolsPerformer,
        scope: Scope,
        *,
        bus: EventBus = EMPTY_BUS,
        client_tools: Collection[str] | None = None,
        is_nested: bool = False,
    ) -> None:
        self.infer = infer
        self.call_tools = call_tools
        self.scope = scope
        self.is_nested = is_nested
        self._bus = bus
        self._client_tools = client_tools

    def reader(self, effect: Infer) -> ReplyReader:
        """Return a reader for the reply to ``effect``."""
        if self._client_tools is not None:
            return ClientReplyReader(effect.show, self._client_tools)
        return ReplyReader(effect.show, begins_thinking=self.infer.begins_thinking(effect))

    async def run(
        self,
        agent: BaseAgent,
        input: str,
        context: AgentContext | Callable[[], Awaitable[AgentContext]],
        shorten_history: ShortenHistory | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of one turn. The first is ``TurnStarted``, the last is ``TurnFinished`` or ``Failed``.

        ``context`` may be a function that prepares it after the first event. No exception reaches the reader. Closing the
        iterator begins no further effect, cancels the running ones and closes the connections to models; then the list has no
        end.
        """
        turn = _Turn(self, agent, input, shorten_history)
        error: SpassError | None = None
        code: str | None = "cancelled"
        yield TurnStarted()
        started = time.monotonic()
        self._bus.publish(AGENT_TURN_START, partial(self._turn_start, len(input)))
        try:
            try:
                async with aclosing(turn.events(context)) as events:
                    async for event in events:
                        yield event
            except SpassError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001 (whatever a kind or a performer does, the list has an end)
                error = InternalError("The turn failed on our side.").with_traceback(failure.__traceback__)
                error.__cause__ = failure
            finally:
                turn.close()
            if error is not None:
                for event in turn.end_open_work(error):
                    yield event
            code = error.code if error is not None else None
        finally:
            self._bus.publish(AGENT_TURN_END, partial(self._turn_end, turn, code, started))
        yield Failed(error) if error is not None else turn.finished

    def _turn_start(self, characters: int) -> "AgentTurnStart":
        from spass.core.bus_events import AgentTurnStart

        return AgentTurnStart(**self.scope.event_fields(), input_chars=characters)

    def _turn_end(self, turn: "_Turn", error: str | None, started: float) -> "AgentTurnEnd":
        from spass.core.bus_events import AgentTurnEnd

        finished = turn.finished
        return AgentTurnEnd(
            **self.scope.event_fields(),
            turns=turn.turns,
            tool_calls=turn.tool_calls,
            finish_reason=finished.finish_reason if error is None else None,
            error=error,
            prompt_tokens=finished.usage.prompt_tokens,
            completion_tokens=finished.usage.completion_tokens,
            cost_usd=finished.cost.usd,
            duration_ms=round((time.monotonic() - started) * 1000),
        )


class _Turn:
    """One turn: the state between its events."""

    def __init__(self, driver: Driver, agent: BaseAgent, input: str, shorten_history: ShortenHistory | None) -> None:
        self.turns = 0
        self.tool_calls = 0
        self._driver = driver
        self._max_turns: int | None = getattr(agent, "max_turns", None)
        self._run = KindRun(agent, input)
        self._shorten_history = shorten_history
        self._transcript = Transcript()
        self._running: dict[str, ToolCall] = {}
        self._nested = NestedCalls()
        self._call_ids: set[str] = set()
        self._finish_reason = FinishReason.STOP
        self._given_metadata: Mapping[str, Json] = {}
        self._metadata: dict[str, Json] = {}

    @property
    def finished(self) -> TurnFinished:
        """Return the last event of a turn that ends now."""
        tally = self._driver.scope.tally
        return TurnFinished(self._finish_reason, tally.usage, tally.total, self._metadata)

    def close(self) -> None:
        """Close the kind's generator."""
        self._run.close()

    async def events(self, context: AgentContext | Callable[[], Awaitable[AgentContext]]) -> AsyncGenerator[Event, None]:
        """Yield the events between the first and the last one."""
        prepared = context if isinstance(context, AgentContext) else await context()
        self._given_metadata = prepared.metadata
        self._call_ids.update(call.id for message in prepared.conversation for call in message.tool_calls)
        effect = self._run.start(prepared)
        while not isinstance(effect, Answer):
            if self._is_out_of_turns(effect):
                effect = self._interrupt(effect)
                continue
            result: list[object] = []
            async with aclosing(self._perform(effect, result)) as events:
                async for event in events:
                    yield event
            effect = self._run.send(*result)
        for event in self._answer(effect):
            yield event

    def end_open_work(self, error: SpassError) -> Iterator[Event]:
        """Yield the end of everything that the error left open."""
        yield from self._transcript.abandon_step()
        result: Json = {"error": {"code": error.code, "message": "The turn failed before this call ended."}}

        def outcome(call: ToolCall, duration_ms: int) -> ToolOutcome:
            message = Message(Role.TOOL, dump(result), tool_call_id=call.id)
            return ToolOutcome(call, arguments_for_display(call.arguments), result, message, duration_ms, ok=False)

        yield from self._nested.end(outcome)
        for call in self._running.values():
            yield ToolCallFinished(outcome(call, 0))

    def _is_out_of_turns(self, effect: Effect) -> bool:
        is_limited = isinstance(effect, CallTools) or (isinstance(effect, Infer) and not effect.aside)
        return is_limited and self._max_turns is not None and self.turns >= self._max_turns

    def _interrupt(self, effect: Effect) -> Effect | Answer:
        """Tell the kind that ``effect`` is not performed. Return what it does instead: by default, it answers."""
        self._metadata = {"max_turns_exceeded": True}
        instead = self._run.interrupt()
        if instead is not None:
            return instead
        said = effect.said if isinstance(effect, CallTools) else None
        return Answer(self._transcript.text if said is None else said)

    def _answer(self, answer: Answer) -> Iterator[Event]:
        reason = answer.finish_reason or self._finish_reason
        if self._metadata:
            reason = FinishReason.MAX_TURNS
        elif answer.calls:
            reason = reason if reason in CUT_OFF else FinishReason.TOOL_CALLS
        elif reason is FinishReason.TOOL_CALLS:
            reason = FinishReason.STOP
        yield from self._transcript.answer(answer.content, give_ids(answer.calls), reason)
        self._finish_reason = reason
        self._metadata = {**self._given_metadata, **answer.metadata, **self._metadata}

    async def _perform(self, effect: Effect, result: list[object]) -> AsyncGenerator[Event, None]:
        """Yield the events of ``effect`` and put its result into ``result``."""
        match effect:
            case Tell(detail=detail):
                yield Status(detail)
                result.append(None)
            case Infer(aside=True):
                result.append(await self._infer_aside(effect))
            case Infer():
                for event in self._transcript.record_shown():
                    yield event
                async with aclosing(self._infer(effect, result)) as deltas:
                    async for event in deltas:
                        yield event
            case CallTools():
                given = tuple(replace(call, id="") for call in effect.calls) if self._driver.is_nested else effect.calls
                calls = give_ids(given, self._call_ids)  # some providers number the calls of each reply from 0
                self._call_ids.update(call.id for call in calls)
                for event in self._transcript.record(effect.said, calls, FinishReason.TOOL_CALLS):
                    yield event
                async with aclosing(self._call_tools(calls, result)) as tool_events:
                    async for event in tool_events:
                        yield event

    async def _infer(self, effect: Infer, result: list[object]) -> AsyncGenerator[Event, None]:
        """Perform one of the agent's own model calls."""
        self.turns += 1
        yield self._transcript.begin_step()
        while True:
            request = replace(effect, tools="named") if effect.tools == "offered" and self.turns == self._max_turns else effect
            reader = self._driver.reader(request)
            try:
                async with aclosing(self._driver.infer.perform(request)) as deltas:
                    async for delta in deltas:
                        for token in self._transcript.show(reader.add(delta)):
                            yield token
                        for event in reader.passed_on:
                            yield event
                break
            except ContextLengthExceeded as error:
                if reader.started:
                    raise
                effect = await self._shorten(error)
        for token in self._transcript.show(reader.end()):
            yield token
        reply = reader.reply
        self._transcript.end_step(reply)
        self._finish_reason = reply.finish_reason
        result.append(reply)

    async def _shorten(self, error: ContextLengthExceeded) -> Infer:
        """Return the failed model call over a shorter history, or raise ``error``."""
        shorten_history, self._shorten_history = self._shorten_history, None
        shorter = await shorten_history() if shorten_history is not None else None
        effect = self._run.restart(tuple(shorter)) if shorter is not None else None
        if not isinstance(effect, Infer):
            raise error
        return effect

    async def _infer_aside(self, effect: Infer) -> AssistantReply:
        infer = self._driver.infer
        reader = ReplyReader(None, begins_thinking=infer.begins_thinking(effect))
        try:
            async with aclosing(infer.perform(effect)) as deltas:
                async for delta in deltas:
                    reader.add(delta)
        except SpassError as error:
            return AssistantReply("", error=CallError(error.code, error.message))
        reader.end()
        return reader.reply

    async def _call_tools(self, calls: Sequence[ToolCall], result: list[object]) -> AsyncGenerator[Event, None]:
        outcomes: dict[str, ToolOutcome] = {}
        async with aclosing(self._driver.call_tools(calls)) as events:
            async for event in events:
                match event:
                    case ToolCallStarted(call=call):
                        self.tool_calls += 1
                        self._running[call.id] = call
                    case ToolCallFinished(outcome=outcome):
                        self._running.pop(outcome.call.id, None)
                        outcomes[outcome.call.id] = outcome
                    case Nested():
                        self._nested.add(event)
                    case ToolProgress():
                        pass
                yield event
        result.append(tuple(outcomes[call.id] for call in calls))
