"""Run the generator of a kind: resume it with results, record them, and replay them over another conversation."""

from asyncio import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.core.effects import Answer, CallTools, Effect, Infer, MaxTurns, Steps, Tell
from spass.core.errors import InternalError
from spass.core.messages import Message

_MAX_EFFECTS: Final = 10_000
_EFFECTS: Final = (Infer, CallTools, Tell)
_FAILURES: Final = (Exception, GeneratorExit, CancelledError)
"""Everything that a kind may raise. A generator awaits nothing, so a cancellation that it raises is not that of the task."""


@dataclass(frozen=True, slots=True)
class _Interrupt:
    """The result of an effect that is not performed: ``MaxTurns`` is raised in the generator."""


_INTERRUPT: Final = _Interrupt()


class KindRun:
    """One run of ``agent``. ``effect`` is the one that it waits for.

    Every method that resumes the generator returns its next effect or its answer.

    Raises:
        InternalError: the kind failed: it raised an exception, yielded something that is not an effect, returned something that
            is not an ``Answer``, or yields effects without end.
    """

    def __init__(self, agent: BaseAgent, input: str) -> None:
        self._agent = agent
        self._input = input
        self._context = AgentContext()
        self._steps: Steps | None = None
        self._record: list[tuple[Effect, object]] = []
        self._effect: Effect | None = None

    def start(self, context: AgentContext) -> Effect | Answer:
        """Start the generator."""
        self._context = context
        return self._begin()

    def send(self, result: object) -> Effect | Answer:
        """Resume the generator with the result of its effect."""
        answer = self._resume(result)
        if answer is None:
            raise self._fault("raised MaxTurns, which only the driver does")
        return answer

    def interrupt(self) -> Effect | Answer | None:
        """Raise ``MaxTurns`` in the generator. Return None if the generator does not handle it."""
        return self._resume(_INTERRUPT)

    def restart(self, conversation: tuple[Message, ...]) -> Effect | None:
        """Start again over another conversation, up to the effect that the generator waits for. The recorded results are sent
        again, so no effect is performed twice. Return that effect, or None if the kind now does something else."""
        self.close()
        self._context = replace(self._context, conversation=conversation)
        try:
            return self._replay(self._record, self._effect)
        except InternalError:
            return None

    def _replay(self, record: list[tuple[Effect, object]], waiting_for: Effect | None) -> Effect | None:
        self._record = []
        effect: Effect | Answer | None = self._begin()
        for recorded, result in record:
            if not _is_same(effect, recorded):
                return None
            effect = self._resume(result)
        return self._effect if _is_same(effect, waiting_for) else None

    def close(self) -> None:
        """Close the generator. A generator that ignores this is dropped."""
        if self._steps is not None:
            with suppress(*_FAILURES):
                self._steps.close()

    def _begin(self) -> Effect | Answer:
        try:
            self._steps = self._agent.steps(self._input, self._context)
            return self._check(next(self._steps))
        except StopIteration as end:
            return self._answer(end.value)
        except _FAILURES as error:
            raise self._failure(error) from error

    def _resume(self, result: object) -> Effect | Answer | None:
        if self._steps is None or self._effect is None:
            raise RuntimeError("the run has not started")
        self._record.append((self._effect, result))
        if len(self._record) > _MAX_EFFECTS:
            raise self._fault(f"yielded more than {_MAX_EFFECTS} effects in one turn")
        try:
            if result is _INTERRUPT:
                return self._check(self._steps.throw(MaxTurns()))
            return self._check(self._steps.send(result))
        except StopIteration as end:
            return self._answer(end.value)
        except MaxTurns:
            return None
        except _FAILURES as error:
            raise self._failure(error) from error

    def _check(self, effect: object) -> Effect:
        if not isinstance(effect, _EFFECTS):
            raise self._fault(f"yielded a {type(effect).__name__}, which is not an effect")
        self._effect = effect
        return effect

    def _answer(self, answer: object) -> Answer:
        if not isinstance(answer, Answer):
            raise self._fault(f"returned a {type(answer).__name__} instead of an Answer")
        return answer

    def _failure(self, error: BaseException) -> InternalError:
        if isinstance(error, InternalError):
            return error
        failure = self._fault(f"raised {type(error).__name__}")
        return failure.with_traceback(error.__traceback__)

    def _fault(self, problem: str) -> InternalError:
        return InternalError(f"The agent kind {type(self._agent).__name__} {problem}.")


def _is_same(effect: Effect | Answer | None, recorded: Effect | None) -> bool:
    """Return whether a replayed effect is the recorded one. Model calls differ, because their messages are shorter."""
    if isinstance(effect, Infer) and isinstance(recorded, Infer):
        return effect.aside == recorded.aside
    return effect == recorded
