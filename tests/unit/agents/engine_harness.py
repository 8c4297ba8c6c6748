"""An engine over the real pipeline, router and tools; only the provider is scripted."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from spass.agents.engine import Engine
from spass.agents.spec import AgentSpec
from spass.calls.pipeline import Calls
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall
from spass.llm.errors import BackendError
from spass.llm.router import Router
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, ToolCallDelta
from spass.tenancy.config import BackendConfig, GatewayConfig
from spass.tenancy.settings import Cascade
from spass.tools.toolbox import Toolbox
from tests.unit.tools.fakes import FakeKnowledge

CONFIG = GatewayConfig.model_validate(
    {
        "llm": {"retries": 0, "backends": [{"provider": "openai", "supported_models": ["talker"]}]},
        "models": [{"name": "talker", "context_window": 1000, "usd_per_mtok_in": "1", "usd_per_mtok_out": "2"}],
        "defaults": {"rag_top_k": 7},
    }
)


@dataclass(slots=True)
class ScriptedProvider:
    """Says ``answers`` in their order; a ``BackendError`` among them is raised. Streams word by word when asked to; a delta is
    said as it is."""

    answers: list[Message | ChatDelta | BackendError] = field(default_factory=list)
    asked: list[ChatRequest] = field(default_factory=list)
    contexts: list[CallContext] = field(default_factory=list)

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        self.asked.append(request)
        self.contexts.append(context)
        answer = self.answers.pop(0)
        if isinstance(answer, BackendError):
            raise answer
        if isinstance(answer, ChatDelta):
            yield answer
            return
        pieces = answer.content.split(" ") if request.stream else [answer.content]
        for at, piece in enumerate(pieces):
            yield ChatDelta(piece if at == 0 else f" {piece}")
        calls = tuple(ToolCallDelta(at, call.id, call.name, call.arguments) for at, call in enumerate(answer.tool_calls))
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        yield ChatDelta(tool_calls=calls, finish_reason=reason, usage=TokenUsage(10, 5))

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        raise AssertionError("nothing here embeds")

    async def aclose(self) -> None:
        pass


@dataclass(slots=True)
class EngineHarness:
    """Everything a turn needs."""

    provider: ScriptedProvider
    shelf: FakeKnowledge
    engine: Engine

    def will_say(self, *answers: Message | ChatDelta | BackendError) -> None:
        self.provider.answers += answers


def make_engine_harness() -> EngineHarness:
    provider = ScriptedProvider()
    shelf = FakeKnowledge(
        {("demo", "berlin-info"): ["Das Brandenburger Tor wurde 1791 gebaut.", "Der Tiergarten hat 210 Hektar."]}
    )

    def provider_of(backend: BackendConfig, key: str | None) -> ScriptedProvider:
        return provider

    router = Router(CONFIG.llm, CONFIG.models, lambda name: "key", provider_of=provider_of)
    return EngineHarness(
        provider, shelf, Engine(Calls(CONFIG, router, Cascade(CONFIG)), Toolbox(shelf, Cascade(CONFIG)), shelf, Cascade(CONFIG))
    )


def agent(**fields: object) -> AgentSpec:
    return AgentSpec.model_validate({"name": "tester", "model": "talker", "system_prompt": "Be brief.", **fields})


def says(text: str, *calls: tuple[str, str]) -> Message:
    return Message(Role.ASSISTANT, text, tuple(ToolCall(f"c{at}", name, given) for at, (name, given) in enumerate(calls)))


def contents(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message.role.value, message.content) for message in messages]
