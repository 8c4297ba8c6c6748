"""Run an agent kind: perform its effects and emit the events of the turn.

The driver is the only place that emits turn events, enforces ``max_turns``, assembles model deltas and records a failure.
``driven_turn`` is what happens between the first event and the last.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from spass.agents.driven_turn import DrivenTurn
from spass.agents.inference import ClientReplyReader, Inference, ReplyReader
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.calls.scope import Scope
from spass.core.bus import AGENT_TURN_END, AGENT_TURN_START, EMPTY_BUS, EventBus
from spass.core.code_calls import Interpreter
from spass.core.effects import (
    CellResult,
    ForeignResult,
    ForeignRun,
    Infer,
    Page,
    RunCode,
)
from spass.core.errors import InternalError, SpassError
from spass.core.events import (
    CallEvent,
    Event,
    Failed,
    TurnStarted,
)
from spass.core.memory import Memory
from spass.core.messages import Message, ToolCall

if TYPE_CHECKING:
    from spass.core.bus_events import AgentTurnEnd, AgentTurnStart

ShortenHistory: TypeAlias = Callable[[], Awaitable[Sequence[Message] | None]]
"""Return a shorter history, or None if there is none. The driver calls it at most once, when the provider reports that the
conversation is too long."""
CallToolsPerformer: TypeAlias = Callable[[Sequence[ToolCall]], AsyncGenerator[CallEvent, None]]
"""Execute tool calls side by side and yield their events as they happen. When it is closed, it cancels the calls."""
FetchPagePerformer: TypeAlias = Callable[[str, int], Awaitable[Page]]
"""Fetch the page at a URL, and return at most so many characters of its text."""
RunForeignPerformer: TypeAlias = Callable[[ForeignRun], Awaitable[ForeignResult]]
"""Run a foreign agent."""


class CodeRunner(Protocol):
    """Perform ``RunCode``."""

    def open(self) -> Interpreter:
        """Return the interpreter of a turn."""
        ...

    def perform(self, effect: RunCode, call: ToolCall, interpreter: Interpreter) -> AsyncGenerator[CallEvent | CellResult, None]:
        """Run the cell as ``call``. Yield the events of the call and of the calls within it, and last the result."""
        ...


OpenCode: TypeAlias = Callable[[], CodeRunner]
"""Return the runner of the code of one turn. The driver calls it when the kind yields the turn's first cell."""


@dataclass(slots=True)
class Driver:
    """Run the kinds of one scope. ``scope`` is that of the agent; its tally counts the cost and the tokens of the turn.

    ``client_tools`` is set for a client of chat completions, who reads the model's text unfiltered and refusals apart from it,
    and answers the calls of these tools: their pieces are events. A driver that ``is_nested`` runs within a call of another one:
    it gives each call an id of its own, because the calls of both are in one stream. ``open_code``, ``fetch_page`` and
    ``run_foreign`` perform the effects that not every kind has. ``memory`` is that of the operator that runs, if one does.
    """

    infer: Inference
    call_tools: CallToolsPerformer
    scope: Scope
    _: KW_ONLY
    open_code: OpenCode | None = None
    fetch_page: FetchPagePerformer | None = None
    run_foreign: RunForeignPerformer | None = None
    memory: Memory | None = None
    bus: EventBus = EMPTY_BUS
    client_tools: Collection[str] | None = None
    is_nested: bool = False

    def reader(self, effect: Infer) -> ReplyReader:
        """Return a reader for the reply to ``effect``."""
        if self.client_tools is not None:
            return ClientReplyReader(effect.show, self.client_tools)
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
        turn = DrivenTurn(self, agent, input, shorten_history)
        error: SpassError | None = None
        code: str | None = "cancelled"
        yield TurnStarted()
        started = time.monotonic()
        self.bus.publish(AGENT_TURN_START, partial(self._turn_start, len(input)))
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
                await turn.close()
            if error is not None:
                for event in turn.end_open_work(error):
                    yield event
            code = error.code if error is not None else None
        finally:
            self.bus.publish(AGENT_TURN_END, partial(self._turn_end, turn, code, started))
        yield Failed(error) if error is not None else turn.finished

    def _turn_start(self, characters: int) -> "AgentTurnStart":
        from spass.core.bus_events import AgentTurnStart

        return AgentTurnStart(**self.scope.event_fields(), input_chars=characters)

    def _turn_end(self, turn: DrivenTurn, error: str | None, started: float) -> "AgentTurnEnd":
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
