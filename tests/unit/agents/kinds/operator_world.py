"""A world for runs of an operator: replies of the agent's own calls, replies of the side calls, results of tools, notes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spass.agents.kinds import AgentContext, BaseAgent
from spass.core.effects import CallError, Infer, Note
from spass.core.events import Event, Outcome, collect
from spass.core.messages import Json, Role
from tests.unit.agents.driver_harness import NoteBook, ScriptedReply, ScriptedWorld

Aside = Callable[[Infer], str | Exception]


@dataclass
class OperatorRun:
    """One run. ``own`` are the agent's model calls and ``asides`` the others. ``outcome`` is what a client gets."""

    events: Sequence[Event]
    own: Sequence[Infer]
    asides: Sequence[Infer]
    memory: NoteBook

    @property
    def outcome(self) -> Outcome:
        return collect(self.events)

    @property
    def side_calls(self) -> list[Any]:
        """Return the purposes and codes of the calls that failed."""
        listed: Any = self.outcome.metadata.get("side_calls", [])
        return [(call["purpose"], call["code"]) for call in listed]

    @property
    def prompt(self) -> str:
        """Return the system prompt."""
        first = self.own[0].messages[0]
        return first.content if first.role is Role.SYSTEM else ""

    @property
    def data(self) -> list[str]:
        """Return the data before the input."""
        return [message.with_heading_in_text().content for message in self.own[0].messages if message.data]

    def results(self) -> list[str]:
        """Return the tool messages that the last model call read."""
        return [message.content for message in self.own[-1].messages if message.role is Role.TOOL]


@dataclass
class OperatorWorld:
    """``replies`` are those of the agent, of which the last one repeats. ``aside`` answers a side call. ``results`` are
    those of the tools. The memory has ``notes`` and ``state``; a search by meaning fails with ``error``."""

    replies: Sequence[ScriptedReply | Exception] = (ScriptedReply("Done."),)
    aside: Aside = lambda _: ""
    results: Mapping[str, Json] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    state: str | None = None
    error: CallError | None = None

    async def run(self, agent: BaseAgent, input: str = "Find the cause", context: AgentContext | None = None) -> OperatorRun:
        remaining = list(self.replies)

        def answer(effect: Infer) -> ScriptedReply | Exception:
            if not effect.aside:
                return remaining.pop(0) if len(remaining) > 1 else remaining[0]
            reply = self.aside(effect)
            return ScriptedReply(reply) if isinstance(reply, str) else reply

        memory = NoteBook({note.key: note for note in self.notes}, self.state, self.error)
        world = ScriptedWorld(answer, results=self.results, memory=memory)
        events = await world.run(agent, input, context)
        own = [effect for effect in world.effects if not effect.aside]
        return OperatorRun(events, own, [effect for effect in world.effects if effect.aside], memory)


def calling(*names: str) -> list[ScriptedReply | Exception]:
    """Return the replies of an agent that calls the tools ``names`` at once and then answers."""
    return [ScriptedReply("I look.", names), ScriptedReply("Done.")]
