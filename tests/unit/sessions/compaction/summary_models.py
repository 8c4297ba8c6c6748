"""Summary models that do what a test says, and the conversations that they are shown."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from spass.calls.pipeline import Calls
from spass.core.messages import FinishReason, Message, Role, ToolCall
from spass.llm import errors as llm
from spass.llm.router import Router
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, ToolCallDelta
from spass.sessions.compaction.summary import Summarizer
from spass.tenancy.config import BackendConfig, GatewayConfig
from spass.tenancy.settings import Cascade

WINDOWS: Final = {"tiny": 300, "small": 700, "roomy": 8000, "vast": 1_000_000}
"""Summary models, and how many tokens they take."""

Written: TypeAlias = Sequence[ChatDelta] | BaseException
"""What a model answers, or how it fails; an exception behind deltas breaks the answer off."""

Writes: TypeAlias = Callable[[ChatRequest], "Written | tuple[Sequence[ChatDelta], BaseException]"]


def config(summary_model: str | None = "small", **defaults: Any) -> GatewayConfig:
    """A gateway with these models, and one of the agent's own; ``defaults`` are the tenant's."""
    served = [*WINDOWS, "own"]
    prices = {"usd_per_mtok_in": 1, "usd_per_mtok_out": 1}
    models = [{"name": name, "context_window": window, **prices} for name, window in WINDOWS.items()]
    return GatewayConfig.model_validate(
        {
            "llm": {"retries": 0, "backends": [{"name": "scripted", "provider": "ollama", "supported_models": served}]},
            "models": [*models, {"name": "own", "context_window": 5000}, {"name": "unserved", "context_window": 5000}],
            "defaults": {"compact_summary_model": summary_model},
            "tenants": [{"id": "acme", "defaults": defaults}],
        }
    )


def said(text: str, reason: FinishReason = FinishReason.STOP) -> list[ChatDelta]:
    return [ChatDelta(text, finish_reason=reason)]


_CALL: Final = ToolCallDelta(0, "call_1", "calculator", "{}")
SECRET: Final = "sk-live-0123456789abcdef"

FAILURES: Final[dict[str, tuple[Written | tuple[Sequence[ChatDelta], BaseException], str]]] = {
    "no answer in time": (llm.BackendTimeout(SECRET), "upstream_error"),
    "not reachable": (llm.BackendUnavailable(SECRET), "upstream_error"),
    "breaks off": ((said("The beginning of"), llm.BackendUnavailable(SECRET)), "upstream_error"),
    "refuses our key": (llm.BackendAuthError(SECRET), "upstream_error"),
    "refuses the request": (llm.BackendBadRequest(SECRET), "upstream_rejected"),
    "has not what is asked for": (llm.BackendUnsupported(SECRET, param="messages"), "invalid_request"),
    "finds everything too long": (llm.BackendContextLength(SECRET), "context_length_exceeded"),
    "says nothing": ([ChatDelta(finish_reason=FinishReason.STOP)], "empty"),
    "says blanks": (said(" \n\t "), "empty"),
    "says what nobody sees": (said("\u200b\u2060\U000e0041\ufeff"), "empty"),
    "says blank letters": (said("\u2800\u3000"), "empty"),
    "says dots": (said("...\n---"), "empty"),
    "only thinks": (said("<think>Ana has"), "empty"),
    "calls a tool": ([ChatDelta(tool_calls=(_CALL,), finish_reason=FinishReason.TOOL_CALLS)], "tool_calls"),
    "calls a tool and chats": ([ChatDelta("One moment.", (_CALL,), FinishReason.TOOL_CALLS)], "tool_calls"),
    "refuses": ([ChatDelta(refusal="I can't.", finish_reason=FinishReason.STOP)], "refused"),
    "refuses half-way": ([ChatDelta("Ana has", refusal="I can't.", finish_reason=FinishReason.STOP)], "refused"),
    "is filtered": (said("Ana has", FinishReason.CONTENT_FILTER), "refused"),
    "is cut off": (said("Ana has", FinishReason.LENGTH), "too_long"),
    "thinks until it is cut off": (said("", FinishReason.LENGTH), "too_long"),
    "never ends": (said("word " * 3000), "too_long"),
}
"""What a summary model may do wrong, and the reason that is then given."""


def conversation(turns: int, words: int = 12) -> list[Message]:
    """So many turns, a call of a tool in every third; each text is of so many words, the first names the turn."""
    messages: list[Message] = []
    for turn in range(turns):
        text = f"turn-{turn} " + "word " * (words - 1)
        messages.append(Message(Role.USER, text))
        if turn % 3 == 1:
            call = ToolCall(f"call_{turn}", "calculator", json.dumps({"expression": f"{turn} + 1"}))
            messages.append(Message(Role.ASSISTANT, "", (call,)))
            messages.append(Message(Role.TOOL, f"result-{turn}", tool_call_id=call.id))
        messages.append(Message(Role.ASSISTANT, f"answer-{turn}"))
    return messages


def material(request: ChatRequest) -> list[dict[str, Any]]:
    """The lines of a request for a summary."""
    return read(request.messages[-1].content.rpartition("\n\n")[0])


def read(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.split("\n")]


def instruction(request: ChatRequest) -> str:
    return request.messages[0].content


def merges(request: ChatRequest) -> bool:
    """Whether it is summaries of parts that are summarised."""
    return any("summary" in line for line in material(request))


@dataclass
class SummaryModel:
    """A provider that does what ``writes`` says, after ``before`` if there is such a thing. It remembers what it was asked, and
    how many of its answers ended or were given up."""

    writes: Writes
    before: Callable[[ChatRequest], Awaitable[None]] | None = None
    requests: list[ChatRequest] = field(default_factory=list)
    ended: int = 0

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        self.requests.append(request)
        try:
            if self.before is not None:
                await self.before(request)
            match self.writes(request):
                case BaseException() as failure:
                    raise failure
                case (deltas, BaseException() as failure):
                    for delta in _deltas(deltas):
                        yield delta
                    raise failure
                case deltas:
                    for delta in _deltas(deltas):
                        yield delta
        finally:
            self.ended += 1

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass

    def summarizer(self, config: GatewayConfig) -> Summarizer:
        """The real pipeline before this model."""

        def provider_of(backend: BackendConfig, key: str | None) -> SummaryModel:
            return self

        cascade = Cascade(config)
        router = Router(config.llm, config.models, lambda _: None, provider_of=provider_of)
        return Summarizer(Calls(config, router, cascade), cascade, config)


def _deltas(written: object) -> Iterable[ChatDelta]:
    assert isinstance(written, list | tuple)
    for delta in written:
        assert isinstance(delta, ChatDelta)
        yield delta
