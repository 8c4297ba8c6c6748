"""A scripted model in process: a provider that the router asks in place of a real one."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, pack_rows

DIMENSIONS: Final = 8
USAGE: Final = TokenUsage(10, 5)
"""The usage of an answer that is a text."""

Deltas: TypeAlias = Sequence[ChatDelta | BaseException]
Answer: TypeAlias = str | Deltas | BaseException
"""A text, which is streamed in two pieces; deltas, and exceptions to raise between them; or an exception."""

Script: TypeAlias = Callable[[ChatRequest, CallContext], Answer | AsyncGenerator[ChatDelta, None]]


def in_turn(answers: Iterable[Answer]) -> Script:
    """Return a script that gives ``answers`` in order and repeats the last one."""
    remaining = list(answers)

    def script(_: ChatRequest, __: CallContext) -> Answer:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return script


def calls(*tools: tuple[str, Mapping[str, object] | str], text: str = "") -> Sequence[ChatDelta]:
    """Return an answer that says ``text`` and calls ``tools``: names with their arguments, an object or its JSON."""
    pieces = tuple(
        ToolCallDelta(number, f"call_{number}", name, given if isinstance(given, str) else json.dumps(given))
        for number, (name, given) in enumerate(tools)
    )
    said = [ChatDelta(text)] if text else []
    return [*said, ChatDelta(tool_calls=pieces, finish_reason=FinishReason.TOOL_CALLS, usage=USAGE)]


def count_letters(request: EmbeddingRequest) -> EmbeddingReply:
    """Embed each text as 1 plus the number of its letters with each code modulo 8. Count one token per text."""
    rows = [
        [1.0 + sum(ord(letter) % DIMENSIONS == place for letter in text) for place in range(DIMENSIONS)] for text in request.texts
    ]
    return EmbeddingReply(pack_rows(rows), len(rows), DIMENSIONS, TokenUsage(len(rows)))


@dataclass
class ScriptedModel:
    """A provider that answers by ``script``, which is an answer or a function, and embeds by ``vectors``.

    Every call raises ``failure``, if there is one. A chat first awaits ``before_chat``. If ``sent``, the model receives each
    request completely, so a lost answer may be billed. ``closed`` counts the answers that ended or were cancelled.
    """

    script: Answer | Script = "Hello there."
    vectors: Callable[[EmbeddingRequest], EmbeddingReply] = count_letters
    failure: BaseException | None = None
    before_chat: Callable[[], Awaitable[None]] | None = None
    sent: bool = False
    requests: list[ChatRequest] = field(default_factory=list)
    embeddings: list[EmbeddingRequest] = field(default_factory=list)
    contexts: list[CallContext] = field(default_factory=list)
    closed: int = 0

    @property
    def embedded_texts(self) -> list[str]:
        """Return the texts of all embedding requests."""
        return [text for request in self.embeddings for text in request.texts]

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        self.requests.append(request)
        self._begin(context)
        try:
            if self.before_chat is not None:
                await self.before_chat()
            if self.failure is not None:
                raise self.failure
            answer = self.script(request, context) if callable(self.script) else self.script
            if isinstance(answer, AsyncGenerator):
                async with aclosing(answer):
                    async for delta in answer:
                        yield delta
            else:
                for delta in _deltas(answer):
                    yield delta
        finally:
            self.closed += 1

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        self.embeddings.append(request)
        self._begin(context)
        if self.failure is not None:
            raise self.failure
        return self.vectors(request)

    async def aclose(self) -> None:
        """Do nothing, because this model has no connection."""

    def _begin(self, context: CallContext) -> None:
        self.contexts.append(context)
        context.attempt.sent = self.sent


def _deltas(answer: Answer) -> Iterable[ChatDelta]:
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, str):
        middle = len(answer) // 2
        yield ChatDelta(answer[:middle])
        yield ChatDelta(answer[middle:], finish_reason=FinishReason.STOP, usage=USAGE)
        return
    for delta in answer:
        if isinstance(delta, BaseException):
            raise delta
        yield delta
