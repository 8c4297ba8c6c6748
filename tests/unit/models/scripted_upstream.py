"""A scripted upstream behind httpx, and functions that call a provider with it."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol, cast

import httpx

from spass.core.messages import Json, Message, Role, ToolCall, ToolSpec
from spass.core.time import Deadline
from spass.models.providers.anthropic import Anthropic
from spass.models.providers.bedrock import Bedrock
from spass.models.providers.ollama import Ollama
from spass.models.providers.openai_compatible import OpenAi, Xai
from spass.models.types import CallContext, ChatDelta, ChatReply, ChatRequest, Provider
from spass.tenancy.config import BackendConfig
from tests.unit.collected_replies import collect_deltas

KEY = "test-key-1234567890"

WEATHER = ToolSpec(
    "weather", "The weather in a city.", {"type": "object", "properties": {"city": {"type": "string"}}}, category="web"
)
"""Its category must not reach a provider."""
QUESTION = Message(Role.USER, "What is the weather in Köln?")
CALL = ToolCall("call_1", "weather", '{"city": "Köln"}')

Payload = dict[str, Json]


@dataclass(frozen=True)
class Answer:
    """An answer of the provider: a status and the pieces of its body. Then the body raises ``breaks``, if it is set."""

    status: int = 200
    chunks: Sequence[bytes] = ()
    headers: dict[str, str] = field(default_factory=dict)
    breaks: Exception | None = None
    on_close: Callable[[], None] = lambda: None


def json_answer(payload: Json, status: int = 200, **headers: str) -> Answer:
    """Return an answer with one JSON body."""
    return Answer(status, [json.dumps(payload).encode()], {name.replace("_", "-"): value for name, value in headers.items()})


def text(body: str | bytes, status: int = 200) -> Answer:
    return Answer(status, [body.encode() if isinstance(body, str) else body])


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._answer.chunks:
            yield chunk
        if self._answer.breaks is not None:
            raise self._answer.breaks

    async def aclose(self) -> None:
        self._answer.on_close()


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that the upstream received."""

    url: str
    headers: httpx.Headers
    body: Payload


class Upstream:
    """Return ``answers`` in their order, and repeat the last one. An exception is raised as the transport would raise it."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[ReceivedRequest] = []
        self.transport = httpx.MockTransport(self._answer)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(ReceivedRequest(str(request.url), request.headers, cast(Payload, json.loads(request.content))))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer))

    @property
    def body(self) -> Payload:
        """Return the body of the last request."""
        return self.requests[-1].body


class ProviderClass(Protocol):
    def __call__(
        self, backend: BackendConfig, key: str | None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> Provider: ...


CLASSES: dict[str, ProviderClass] = {"openai": OpenAi, "xai": Xai, "ollama": Ollama, "anthropic": Anthropic, "bedrock": Bedrock}


def backend(provider: str = "openai", **fields: object) -> BackendConfig:
    return BackendConfig.model_validate({"provider": provider, **fields})


def provider_at(upstream: Upstream, provider: str = "openai", key: str | None = KEY, base_url: str | None = None) -> Provider:
    return CLASSES[provider](backend(provider, base_url=base_url), key, transport=upstream.transport)


def context(seconds: float = 30.0, **headers: str) -> CallContext:
    return CallContext(Deadline.after(seconds), {name.replace("_", "-"): value for name, value in headers.items()})


def request(*messages: Message, stream: bool = False) -> ChatRequest:
    return ChatRequest("model-1", messages or (QUESTION,), stream=stream)


async def deltas_of(provider: Provider, chat_request: ChatRequest | None = None, seconds: float = 30.0) -> list[ChatDelta]:
    async with aclosing(provider.chat(chat_request or request(), context(seconds))) as deltas:
        return [delta async for delta in deltas]


async def body_of(chat_request: ChatRequest, answer: Payload, provider: str = "openai", key: str | None = KEY) -> Payload:
    """Return the body in which the provider sends a request."""
    upstream = Upstream(json_answer(answer))
    await reply_of(provider_at(upstream, provider, key), chat_request)
    return upstream.body


async def reply_of(provider: Provider, chat_request: ChatRequest | None = None) -> ChatReply:
    return collect_deltas(await deltas_of(provider, chat_request))
