"""Run agents: connect a kind to the pipeline, the tools and the agent's knowledge index."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spass.agents.kinds import orchestrator
from spass.agents.kinds.context import ModelEvent
from spass.agents.spec import AgentSpec
from spass.calls.invisible_characters import strip_invisible
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import ContextLengthExceeded, ModelNotAllowed
from spass.core.events import Event, InferenceFinished, Token
from spass.core.ids import AgentName, IndexId
from spass.core.messages import Message, Role, TokenUsage, ToolCall, ToolSpec
from spass.llm.types import ChatRequest, ReplyBuilder
from spass.rag.search.prompt import render_context
from spass.tenancy.settings import Cascade
from spass.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from spass.rag.search.reader import Reader
    from spass.sessions.turn import ShortenHistory

RUN_FUNCTIONS: Final = {"orchestrator": orchestrator.run}

_MAX_RETRIEVAL_CHARACTERS: Final = 2000
"""Characters of a message that are searched for. More text does not improve the search, and embedding it takes seconds."""


class Engine:
    """Run the turns of all agents. A process has one engine."""

    def __init__(self, calls: Calls, toolbox: Toolbox, reader: "Reader", cascade: Cascade) -> None:
        self._calls = calls
        self._cascade = cascade
        self._toolbox = toolbox
        self._reader = reader

    def check(self, scope: Scope, agent: AgentSpec) -> None:
        """Check whether the caller may run ``agent``. Call this before the first write and the first byte of the answer.

        Raises:
            ModelNotAllowed: the caller's token may not use the agent's model.
        """
        if not scope.caller.identity.allows(agent.model):
            raise ModelNotAllowed(f"This token may not use the model '{agent.model}' of the agent '{agent.name}'.")

    async def run(
        self,
        scope: Scope,
        agent: AgentSpec,
        history: Sequence[Message],
        message: str,
        *,
        shorten_history: "ShortenHistory | None" = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of one turn, in which ``agent`` answers ``message`` after ``history``. The prompt contains retrieved
        passages before the message; no event contains them. ``shorten_history`` is called at most once, when the provider
        rejects the conversation as too long.

        Raises:
            SpassError: the turn failed, and the caller must discard its events.
        """
        self.check(scope, agent)
        inner = replace(scope, agent=AgentName(agent.name))
        retrieved = await self._retrieve(inner, agent, message)
        past = [message for message in history if _has_content(message)]
        offered = self._toolbox.specs(agent.tools, scope.caller.identity)
        context = _Context(self._calls, self._toolbox, inner, agent, offered, past, shorten_history)
        conversation = [*past, *retrieved, Message(Role.USER, message)]
        async with aclosing(RUN_FUNCTIONS[agent.kind](context, conversation)) as events:
            async for event in events:
                yield event

    async def _retrieve(self, scope: Scope, agent: AgentSpec, message: str) -> Sequence[Message]:
        """Return the passages for ``message`` as a user message marked as data, because they may be untrusted text."""
        if agent.rag_index is None:
            return ()
        index = IndexId(agent.rag_index)
        top_k = agent.rag_top_k or (await self._cascade.effective(scope.store, bypass_cache=scope.bypass_cache)).config.rag_top_k
        hits = await self._reader.retrieve(scope, index, message[:_MAX_RETRIEVAL_CHARACTERS], top_k)
        text = render_context(hits, index)
        return (Message(Role.USER, text, data=True),) if text else ()


@dataclass(slots=True)
class _Context:
    """The ``KindContext`` of one agent in one request. If the provider rejects the conversation as too long, ``shorten_history``
    may return a ``shorter`` history, which then replaces ``history`` in every request. The kind does not notice."""

    calls: Calls
    toolbox: Toolbox
    scope: Scope
    agent: AgentSpec
    offered: tuple[ToolSpec, ...]
    history: Sequence[Message]
    shorten_history: "ShortenHistory | None"
    shorter: Sequence[Message] | None = None

    @property
    def max_turns(self) -> int:
        limit: int = self.agent.parameters.get("max_turns", 10)
        return limit

    async def model(
        self, conversation: Sequence[Message], step: int, *, may_call_tools: bool
    ) -> AsyncGenerator[ModelEvent, None]:
        while True:
            builder, started = ReplyBuilder(), False
            request = self._request(self._shortened(conversation), may_call_tools=may_call_tools)
            try:
                async with aclosing(self.calls.chat(self.scope, request)) as deltas:
                    async for delta in deltas:
                        started = True
                        builder.add(delta)
                        if text := delta.content + delta.refusal:
                            yield Token(text, step)
                break
            except ContextLengthExceeded:
                if started or not await self._shorten(conversation):
                    raise
        reply = builder.reply.with_refusal_as_text
        yield InferenceFinished(reply.replayable_message, reply.finish_reason, reply.usage or TokenUsage())

    async def tools(self, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        return await self.toolbox.execute_all(self.scope, calls, allowed=self.agent.tools)

    async def _shorten(self, conversation: Sequence[Message]) -> bool:
        """Call ``shorten_history`` at most once and return whether ``conversation`` is shorter now."""
        shorten_history, self.shorten_history = self.shorten_history, None
        if shorten_history is None or not self._begins_with_history(conversation):
            return False
        shorter = await shorten_history()
        if shorter is not None:
            self.shorter = [message for message in shorter if _has_content(message)]
        return shorter is not None

    def _shortened(self, conversation: Sequence[Message]) -> Sequence[Message]:
        if self.shorter is None or not self._begins_with_history(conversation):
            return conversation
        return [*self.shorter, *conversation[len(self.history) :]]

    def _begins_with_history(self, conversation: Sequence[Message]) -> bool:
        return list(conversation[: len(self.history)]) == list(self.history)

    def _request(self, conversation: Sequence[Message], *, may_call_tools: bool) -> ChatRequest:
        kind = self.agent.build()
        system = (Message(Role.SYSTEM, kind.system_prompt),) if strip_invisible(kind.system_prompt).strip() else ()
        return ChatRequest(
            model=self.agent.model,
            messages=(*system, *conversation),
            # Tools are listed even if they may not be called: some providers refuse a conversation with calls of unlisted tools.
            tools=self.offered,
            tool_choice="none" if self.offered and not may_call_tools else None,
            temperature=kind.temperature,
            max_tokens=kind.max_tokens,
            stream=True,  # so that the backend's timeout bounds the silence and not the whole answer
        )


def _has_content(message: Message) -> bool:
    """Return False for an empty answer. The history may contain one, but some providers reject it."""
    return bool(message.content or message.tool_calls or message.role is not Role.ASSISTANT)
