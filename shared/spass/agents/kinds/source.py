"""The source of a run's effects: the generator of a kind, or something else that yields the same effects, such as a container."""

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from spass.core.code_calls import Interpreter
from spass.core.effects import Answer, Effect, MaxTurns, Steps
from spass.core.errors import InternalError

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
        """Return the first effect.

        Raises:
            SpassError: the source failed. So do the other methods.
        """
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
        """Start the generator.

        Raises:
            InternalError: the kind raised an exception, or returned something that is not an ``Answer``. So do the other methods.
        """
        try:
            self._steps = self._begin()
            return self._effect(next(self._steps))
        except StopIteration as end:
            return self._answer(end.value)
        except _FAILURES as error:
            raise self._failure(error) from error

    async def send(self, result: object) -> Effect | Answer:
        steps = self._require_started()
        try:
            return self._effect(steps.send(result))
        except StopIteration as end:
            return self._answer(end.value)
        except MaxTurns as error:
            raise self._fault("raised MaxTurns, which only the driver does") from error
        except _FAILURES as error:
            raise self._failure(error) from error

    async def interrupt(self) -> Effect | Answer | None:
        steps = self._require_started()
        try:
            return self._effect(steps.throw(MaxTurns()))
        except StopIteration as end:
            return self._answer(end.value)
        except MaxTurns:
            return None
        except _FAILURES as error:
            raise self._failure(error) from error

    async def close(self) -> None:
        """Close the generator. A generator that ignores this is dropped."""
        if self._steps is not None:
            with suppress(*_FAILURES):
                self._steps.close()

    def _require_started(self) -> Steps:
        if self._steps is None:
            raise RuntimeError("the run has not started")
        return self._steps

    def _effect(self, effect: object) -> Effect:
        if not isinstance(effect, Effect):
            raise self._fault(f"yielded a {type(effect).__name__}, which is not an effect")
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
        return InternalError(f"The agent kind {self._kind} {problem}.")
