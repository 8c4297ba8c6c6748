"""Run a kind: get its effects from a source, send it results, record them, and replay them over another conversation.

The source is the generator of the kind, or something else that yields the same effects, such as a container.
"""

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from spass.core.code_calls import Interpreter
from spass.core.effects import Answer, Effect, Infer, MaxTurns, Steps
from spass.core.errors import InternalError
from spass.core.messages import Message

if TYPE_CHECKING:
    from spass.agents.kinds.base import AgentContext, BaseAgent

_MAX_EFFECTS: Final = 10_000
_FAILURES: Final = (Exception, GeneratorExit, CancelledError)
"""Everything that a kind may raise. A generator awaits nothing, so a cancellation that it raises is not that of the task."""


class Source(Protocol):
    """The effects of one run, in order. Each method returns the next effect or the answer.

    ``interpreter`` runs the code of the run where its effects come from; None means that of the gateway.
    """

    @property
    def interpreter(self) -> Interpreter | None: ...

    def take_over(self, previous: "Source") -> None:
        """Go on with the interpreter of ``previous``, an earlier source of the same run, which is closed."""
        ...

    async def start(self) -> Effect | Answer:
        """Return the first effect. Raise SpassError if the source failed. So do the other methods."""
        ...

    async def send(self, result: object) -> Effect | Answer:
        """Send the result of the last effect."""
        ...

    async def interrupt(self) -> Effect | Answer | None:
        """Say that the agent has made all its model calls, so the last effect is not performed. Return None if the kind does not
        handle that."""
        ...

    async def close(self) -> None:
        """End the run. Never raise an error."""
        ...


class GeneratorSource:
    """The effects of a generator, which ``begin`` creates. ``kind`` is named in errors."""

    interpreter = None

    def __init__(self, kind: str, begin: Callable[[], Steps]) -> None:
        self._kind = kind
        self._begin = begin
        self._steps: Steps | None = None

    def take_over(self, previous: Source) -> None:
        """Do nothing: a generator has no interpreter."""

    async def start(self) -> Effect | Answer:
        def begin() -> object:
            self._steps = self._begin()
            return next(self._steps)

        return self._require(begin)

    async def send(self, result: object) -> Effect | Answer:
        steps = self._require_started()
        return self._require(lambda: steps.send(result))

    async def interrupt(self) -> Effect | Answer | None:
        steps = self._require_started()
        try:
            return self._advance(lambda: steps.throw(MaxTurns()))
        except MaxTurns:
            return None

    async def close(self) -> None:
        """Close the generator. A generator that ignores this is dropped."""
        if self._steps is not None:
            with suppress(*_FAILURES):
                self._steps.close()

    def _require_started(self) -> Steps:
        if self._steps is None:
            raise RuntimeError("the run has not started")
        return self._steps

    def _require(self, resume: Callable[[], object]) -> Effect | Answer:
        try:
            return self._advance(resume)
        except MaxTurns as error:
            raise self._fault("raised MaxTurns, which only the driver does") from error

    def _advance(self, resume: Callable[[], object]) -> Effect | Answer:
        """Return what the generator does next. Raise MaxTurns if the generator raises it, and InternalError if it raises another
        exception or gives something that is neither an effect nor an answer."""
        try:
            effect = resume()
        except StopIteration as end:
            if not isinstance(end.value, Answer):
                raise self._fault(f"returned a {type(end.value).__name__} instead of an Answer") from None
            return end.value
        except (MaxTurns, InternalError):
            raise
        except _FAILURES as error:
            raise self._fault(f"raised {type(error).__name__}").with_traceback(error.__traceback__) from error
        if not isinstance(effect, Effect):
            raise self._fault(f"yielded a {type(effect).__name__}, which is not an effect")
        return effect

    def _fault(self, problem: str) -> InternalError:
        return InternalError(f"The agent kind {self._kind} {problem}.")


class KindRun:
    """One run of ``agent`` for a tenant. Every method that resumes the kind returns its next effect or its answer.

    Raises:
        InternalError: the kind failed, or yields effects without end.
        SpassError: the source of the effects failed.
    """

    def __init__(self, agent: "BaseAgent", input: str, tenant_id: str) -> None:
        self._agent = agent
        self._tenant_id = tenant_id
        self._input = input
        self._context: AgentContext
        self._source: Source | None = None
        # Effects and their results. ``MaxTurns`` is that of an effect that is not performed.
        self._record: list[tuple[Effect, object]] = []
        self._effect: Effect | None = None

    @property
    def interpreter(self) -> Interpreter | None:
        """Return the interpreter of the source, if it has one of its own."""
        return self._source.interpreter if self._source is not None else None

    async def start(self, context: "AgentContext") -> Effect | Answer:
        """Start the kind."""
        self._context = context
        return await self._begin()

    async def send(self, result: object) -> Effect | Answer:
        """Resume the kind with the result of its effect."""
        answer = await self._resume(result)
        assert answer is not None  # noqa: S101 (only an interrupt may be left unhandled)
        return answer

    async def interrupt(self) -> Effect | Answer | None:
        """Tell the kind that its effect is not performed, because it has made all its model calls. Return None if it does not
        handle that."""
        return await self._resume(MaxTurns)

    async def restart(self, conversation: tuple[Message, ...]) -> Effect | None:
        """Start again over another conversation, up to the effect that the kind waits for. The recorded results are sent again,
        so no effect is performed twice. Return that effect, or None if the kind now does something else."""
        await self.close()
        self._context = replace(self._context, conversation=conversation)
        try:
            return await self._replay(self._record, self._effect)
        except InternalError:
            return None

    async def _replay(self, record: list[tuple[Effect, object]], waiting_for: Effect | None) -> Effect | None:
        self._record = []
        effect: Effect | Answer | None = await self._begin()
        for recorded, result in record:
            if not _is_same(effect, recorded):
                return None
            effect = await self._resume(result)
        return self._effect if _is_same(effect, waiting_for) else None

    async def close(self) -> None:
        """End the run."""
        if self._source is not None:
            await self._source.close()

    async def _begin(self) -> Effect | Answer:
        previous, self._source = self._source, self._agent.open(self._input, self._context, self._tenant_id)
        if previous is not None:
            self._source.take_over(previous)
        return self._note(await self._source.start())

    async def _resume(self, result: object) -> Effect | Answer | None:
        if self._source is None or self._effect is None:
            raise RuntimeError("the run has not started")
        self._record.append((self._effect, result))
        if len(self._record) > _MAX_EFFECTS:
            name = type(self._agent).__name__
            raise InternalError(f"The agent kind {name} yielded more than {_MAX_EFFECTS} effects in one turn.")
        if result is MaxTurns:
            instead = await self._source.interrupt()
            return None if instead is None else self._note(instead)
        return self._note(await self._source.send(result))

    def _note(self, effect: Effect | Answer) -> Effect | Answer:
        if not isinstance(effect, Answer):
            self._effect = effect
        return effect


def _is_same(effect: Effect | Answer | None, recorded: Effect | None) -> bool:
    """Return whether a replayed effect is the recorded one. Model calls differ, because their messages are shorter."""
    if isinstance(effect, Infer) and isinstance(recorded, Infer):
        return effect.aside == recorded.aside
    return effect == recorded
