"""One turn of a driver: perform the effects of a kind, one after the other, and yield the events.

After a model call the kind is resumed before the reply is recorded: its next effect decides what the reply's message is. So what
is recorded, streamed and returned cannot differ.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, assert_never

from spass.agents.inference import Transcript, call_aside, give_ids
from spass.agents.interrupt import NestedCalls
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.kinds.source import KindRun
from spass.core.code_calls import CODE_TOOL, Interpreter
from spass.core.effects import (
    Answer,
    CallTools,
    CellResult,
    Effect,
    FetchPage,
    Infer,
    Page,
    Recalled,
    RecordResult,
    ReportStatus,
    RunCode,
    RunForeign,
    SearchNotes,
    SetState,
    StoreNote,
    ToolOutcome,
)
from spass.core.errors import ContextLengthExceeded, InternalError, KindUnavailable, SpassError
from spass.core.events import (
    CallEvent,
    Event,
    Nested,
    ResultRecorded,
    Status,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnFinished,
)
from spass.core.json import dump
from spass.core.messages import CUT_OFF, FinishReason, Json, Message, Role, ToolCall
from spass.tools.base import arguments_for_display

if TYPE_CHECKING:
    from spass.agents.driver import CodeRunner, Driver, ShortenHistory


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of an effect: the last item of what performs it."""

    value: object


_Performed: TypeAlias = AsyncGenerator[Event | _Result, None]
_AloneEffect: TypeAlias = Infer | ReportStatus | RecordResult | FetchPage | SearchNotes | StoreNote | SetState


class DrivenTurn:
    """One turn: the state between its events."""

    def __init__(self, driver: "Driver", agent: BaseAgent, input: str, shorten_history: "ShortenHistory | None") -> None:
        self.turns = 0
        self.tool_calls = 0
        self._driver = driver
        self._input = input
        self._fetched: set[str] = set()
        self._max_turns: int | None = getattr(agent, "max_turns", None)
        self._run = KindRun(agent, input, driver.scope.caller.tenant)
        self._code: CodeRunner | None = None
        self._interpreter: Interpreter | None = None
        self._shorten_history = shorten_history
        self._transcript = Transcript()
        self._running: dict[str, ToolCall] = {}
        self._nested = NestedCalls()
        self._call_ids: set[str] = set()
        self._outcomes: Mapping[str, ToolOutcome] = {}
        self._finish_reason = FinishReason.STOP
        self._given_metadata: Mapping[str, Json] = {}
        self._metadata: dict[str, Json] = {}
        self._model: str | None = None

    @property
    def finished(self) -> TurnFinished:
        """Return the last event of a turn that ends now."""
        tally = self._driver.scope.tally
        return TurnFinished(self._finish_reason, tally.usage, tally.total, self._metadata, self._model)

    async def close(self) -> None:
        """End the kind's run and its interpreter."""
        try:
            await self._run.close()
        finally:
            if self._interpreter is not None:
                await self._interpreter.close()

    async def events(self, context: AgentContext | Callable[[], Awaitable[AgentContext]]) -> AsyncGenerator[Event, None]:
        """Yield the events between the first and the last one."""
        prepared = context if isinstance(context, AgentContext) else await context()
        self._given_metadata = prepared.metadata
        self._call_ids.update(call.id for message in prepared.conversation for call in message.tool_calls)
        effect = await self._run.start(prepared)
        while not isinstance(effect, Answer):
            if self._is_out_of_turns(effect):
                effect = await self._interrupt(effect)
                continue
            last: Event | _Result | None = None
            async with aclosing(self._perform(effect)) as items:
                async for last in items:
                    if not isinstance(last, _Result):
                        yield last
            if not isinstance(last, _Result):
                raise InternalError(f"The effect {type(effect).__name__} has no result.")
            effect = await self._run.send(last.value)
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

    async def _interrupt(self, effect: Effect) -> Effect | Answer:
        """Tell the kind that ``effect`` is not performed. Return what it does instead: by default, it answers."""
        self._metadata = {"max_turns_exceeded": True}
        instead = await self._run.interrupt()
        if instead is not None:
            return instead
        text = effect.text if isinstance(effect, CallTools) else None
        return Answer(self._transcript.text if text is None else text)

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
        self._model = answer.model

    def _perform(self, effect: Effect) -> _Performed:
        """Return the events of ``effect``, and its result as the last item."""
        match effect:
            case Infer() if not effect.aside:
                return self._infer(effect)
            case CallTools():
                return self._call_tools(effect)
            case RunCode():
                return self._run_code(effect)
            case RunForeign():
                return self._run_foreign(effect)
            case _:
                return self._perform_alone(effect)

    async def _infer(self, effect: Infer) -> _Performed:
        for event in self._begin_step():
            yield event
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
        yield _Result(reply)

    def _begin_step(self) -> Iterator[Event]:
        """Record the shown text of the step before, and begin the next one."""
        yield from self._transcript.record_shown()
        self.turns += 1
        yield self._transcript.begin_step()

    async def _shorten(self, error: ContextLengthExceeded) -> Infer:
        """Return the failed model call over a shorter history, or raise ``error``."""
        shorten_history, self._shorten_history = self._shorten_history, None
        shorter = await shorten_history() if shorten_history is not None else None
        effect = await self._run.restart(tuple(shorter)) if shorter is not None else None
        if not isinstance(effect, Infer):
            raise error
        return effect

    async def _call_tools(self, effect: CallTools) -> _Performed:
        given = tuple(replace(call, id="") for call in effect.calls) if self._driver.is_nested else effect.calls
        calls = self._name_calls(given)
        for recorded in self._transcript.record(effect.text, calls, FinishReason.TOOL_CALLS):
            yield recorded
        outcomes: dict[str, ToolOutcome] = {}
        async with aclosing(self._driver.call_tools(calls)) as events:
            async for event in events:
                self._follow(event)
                if isinstance(event, ToolCallFinished):
                    outcomes[event.outcome.call.id] = event.outcome
                yield event
        self._outcomes = outcomes
        yield _Result(tuple(outcomes[call.id] for call in calls))

    async def _run_code(self, effect: RunCode) -> _Performed:
        if self._driver.open_code is None:
            raise _not_performed(effect)
        code = self._code = self._code or self._driver.open_code()
        (call,) = self._name_calls((ToolCall("", CODE_TOOL, dump({"code": effect.cell.code})),))
        for recorded in self._transcript.record(effect.text, (call,), FinishReason.TOOL_CALLS):
            yield recorded
        interpreter = self._run.interpreter or self._interpreter
        if interpreter is None:
            interpreter = self._interpreter = code.open()
        async with aclosing(code.perform(effect, call, interpreter)) as items:
            async for item in items:
                if isinstance(item, CellResult):
                    yield _Result(item)
                else:
                    self._follow(item)
                    yield item

    async def _run_foreign(self, effect: RunForeign) -> _Performed:
        if self._driver.run_foreign is None:
            raise KindUnavailable("This driver runs no foreign agents. Give it a run_foreign.")
        from spass.agents.performers.foreign import foreign_outcomes

        for event in self._begin_step():
            yield event
        answer = await self._driver.run_foreign(effect.spec)
        for event in self._record_foreign(tuple(foreign_outcomes(answer.tool_results))):
            yield event
        yield _Result(answer)

    def _record_foreign(self, outcomes: tuple[ToolOutcome, ...]) -> Iterator[Event]:
        calls = self._name_calls(tuple(outcome.call for outcome in outcomes))
        if calls:
            yield from self._transcript.record("", calls, FinishReason.TOOL_CALLS)
        for call, outcome in zip(calls, outcomes, strict=True):
            self.tool_calls += 1
            yield ToolCallStarted(call)
            yield ToolCallFinished(replace(outcome, call=call, message=replace(outcome.message, tool_call_id=call.id)))

    async def _perform_alone(self, effect: _AloneEffect) -> _Performed:
        """Perform an effect that makes no step and no calls. Without an operator no note is found and nothing is kept."""
        memory = self._driver.memory
        result: object = None
        match effect:
            case Infer():
                result = await call_aside(self._driver.infer, effect, self._driver.scope.deadline)
            case ReportStatus(detail=detail):
                yield Status(detail)
            case RecordResult(call_id=call_id, content=content):
                self._check_recordable(call_id)
                yield ResultRecorded(call_id, content)
            case FetchPage(url=url):
                result = await self._fetch_page(url)
            case SearchNotes():
                result = await memory.recall(effect) if memory is not None else Recalled()
            case StoreNote():
                result = await memory.keep(effect) if memory is not None else effect.key or ""
            case SetState(value=value):
                if memory is not None:
                    memory.set_state(value)
            case _:
                assert_never(effect)
        yield _Result(result)

    async def _fetch_page(self, url: str) -> Page:
        """Return a page that the turn's input names, once: an instruction that is hidden in a text must send nothing anywhere.
        A model wrote the input of a nested turn, so it names none."""
        if self._driver.fetch_page is None:
            raise _not_performed(FetchPage(url))
        from spass.agents.kinds.native_openhands import PAGE_CHARACTERS
        from spass.agents.kinds.written_urls import MAX_URLS, absolute_url, written_urls

        if self._driver.is_nested or url not in written_urls(self._input):
            return Page(error=f"Only the first {MAX_URLS} URLs that a person writes in a message are fetched.")
        if url in self._fetched:
            return Page(error="This page was fetched before in this turn.")
        self._fetched.add(url)
        return await self._driver.fetch_page(absolute_url(url), PAGE_CHARACTERS)

    def _check_recordable(self, call_id: str) -> None:
        """Check that the call is one of the last ones. A result that waits for a person stays as it is, because the person's
        decision takes its place in later turns."""
        outcome = self._outcomes.get(call_id)
        if outcome is None or outcome.waiting:
            raise InternalError("The agent kind records a result that it may not change.")

    def _name_calls(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return ``calls`` with ids that no other call of the turn has. Some providers number the calls of each reply from 0."""
        named = give_ids(calls, self._call_ids)
        self._call_ids.update(call.id for call in named)
        return named

    def _follow(self, event: CallEvent) -> None:
        match event:
            case ToolCallStarted(call=call):
                self.tool_calls += 1
                self._running[call.id] = call
            case ToolCallFinished(outcome=outcome):
                self._running.pop(outcome.call.id, None)
            case Nested():
                self._nested.add(event)
            case ToolProgress():
                pass


def _not_performed(effect: Effect) -> InternalError:
    return InternalError(f"This driver does not perform {type(effect).__name__}. A kind that yields it sets BaseAgent.needs.")
