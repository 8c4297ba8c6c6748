"""Run a kind: send it results, record them, and replay them over another conversation."""

from dataclasses import dataclass, replace
from typing import Final

from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.kinds.source import Source
from spass.core.code_calls import Interpreter
from spass.core.effects import Answer, Effect, Infer
from spass.core.errors import InternalError
from spass.core.messages import Message

_MAX_EFFECTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Interrupt:
    """The result of an effect that is not performed, because the agent has made all its model calls."""


_INTERRUPT: Final = _Interrupt()


class KindRun:
    """One run of ``agent`` for a tenant. Every method that resumes the kind returns its next effect or its answer.

    Raises:
        InternalError: the kind failed, or yields effects without end.
        SpassError: the source of the effects failed.
    """

    def __init__(self, agent: BaseAgent, input: str, tenant_id: str) -> None:
        self._agent = agent
        self._tenant_id = tenant_id
        self._input = input
        self._context = AgentContext()
        self._source: Source | None = None
        self._record: list[tuple[Effect, object]] = []
        self._effect: Effect | None = None

    @property
    def interpreter(self) -> Interpreter | None:
        """Return the interpreter of the source, if it has one of its own."""
        return self._source.interpreter if self._source is not None else None

    async def start(self, context: AgentContext) -> Effect | Answer:
        """Start the kind."""
        self._context = context
        return await self._begin()

    async def send(self, result: object) -> Effect | Answer:
        """Resume the kind with the result of its effect."""
        answer = await self._resume(result)
        if answer is None:
            raise RuntimeError("only an interrupt may be left unhandled")
        return answer

    async def interrupt(self) -> Effect | Answer | None:
        """Tell the kind that its effect is not performed, because it has made all its model calls. Return None if it does not
        handle that."""
        return await self._resume(_INTERRUPT)

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
        if isinstance(result, _Interrupt):
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
