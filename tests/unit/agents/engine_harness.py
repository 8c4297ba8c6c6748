"""An engine over the real pipeline, router and tools; only the provider is scripted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from spass.agents.driver import ShortenHistory
from spass.agents.engine import NOTHING_GIVEN, Engine
from spass.agents.kinds.base import AgentContext
from spass.agents.responses import Reply
from spass.agents.spec import DEFAULT_KIND, AgentSpec, file_model
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.events import Event
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall, ToolCallDelta
from spass.models.errors import AttemptFailed
from spass.models.router import Router
from spass.models.types import ChatDelta
from spass.runs.run import Run, RunRequest
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.model import Answer, ScriptedModel
from spass.tools.chat_models import ChatModels
from tests.unit.tools.fakes import FakeReader, rag_with, toolbox_of

CONFIG = GatewayConfig.model_validate(
    {
        "llm": {"retries": 0, "backends": [{"provider": "openai", "supported_models": ["talker"]}]},
        "models": [{"name": "talker", "context_window": 1000, "usd_per_mtok_in": "1", "usd_per_mtok_out": "2"}],
        "defaults": {"rag_top_k": 7},
    }
)


def spoken(answer: Message | ChatDelta | AttemptFailed, *, stream: bool) -> Answer:
    """Return a message as deltas, word by word if ``stream``. Return a delta or a failure unchanged."""
    if not isinstance(answer, Message):
        return answer if isinstance(answer, AttemptFailed) else [answer]
    pieces = answer.content.split(" ") if stream else [answer.content]
    words = [ChatDelta(piece if at == 0 else f" {piece}") for at, piece in enumerate(pieces)]
    calls = tuple(ToolCallDelta(at, call.id, call.name, call.arguments) for at, call in enumerate(answer.tool_calls))
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    return [*words, ChatDelta(tool_calls=calls, finish_reason=reason, usage=TokenUsage(10, 5))]


@dataclass(frozen=True, slots=True)
class GivenHistory:
    """A history that is given, and what shortens it."""

    messages: Sequence[Message] = ()
    shorter: ShortenHistory | None = None

    async def history(self) -> Sequence[Message]:
        return self.messages

    async def shorten(self) -> Sequence[Message] | None:
        return await self.shorter() if self.shorter is not None else None


@dataclass(slots=True)
class EngineHarness:
    """An engine with its tools and its index. The model gives ``answers`` in order."""

    reader: FakeReader
    answers: list[Message | ChatDelta | AttemptFailed] = field(default_factory=list)
    model: ScriptedModel = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.model = ScriptedModel(lambda request, _: spoken(self.answers.pop(0), stream=request.stream))
        router = Router(CONFIG.llm, CONFIG.models, lambda name: "key", provider_of=lambda *_: self.model)
        cascade = Cascade(CONFIG)
        calls = Calls(CONFIG, router, cascade)
        toolbox = toolbox_of(rag=rag_with(self.reader), tool_models=ChatModels(calls, CONFIG), cascade=cascade)
        self.engine = Engine(calls, toolbox, lambda: self.reader, cascade)

    async def events(
        self,
        scope: Scope,
        spec: AgentSpec,
        history: Sequence[Message],
        message: str,
        *,
        shorten_history: ShortenHistory | None = None,
        given: AgentContext = NOTHING_GIVEN,
    ) -> list[Event]:
        """Return the events of a turn after ``history``."""

        given_history = GivenHistory(history, shorten_history)
        return [event async for event in self.engine.run(scope, spec, message, given_history, given=given)]

    async def chat(self, scope: Scope, agent: AgentSpec, message: str) -> Reply:
        """Return the reply to a message outside of a session."""
        self.engine.check(scope, agent)
        return Reply.of((await Run(self.engine, scope, agent, RunRequest(message)).execute()).outcome)

    def will_say(self, *answers: Message | ChatDelta | AttemptFailed) -> None:
        self.answers += answers


def make_engine_harness() -> EngineHarness:
    return EngineHarness(
        FakeReader({("demo", "berlin-info"): ["Das Brandenburger Tor wurde 1791 gebaut.", "Der Tiergarten hat 210 Hektar."]})
    )


def agent(**fields: object) -> AgentSpec:
    file = file_model(str(fields.get("kind", DEFAULT_KIND)))
    return file.model_validate({"name": "tester", "model": "talker", "system_prompt": "Be brief.", **fields}).spec()


def says(text: str, *calls: tuple[str, str]) -> Message:
    return Message(Role.ASSISTANT, text, tuple(ToolCall(f"c{at}", name, given) for at, (name, given) in enumerate(calls)))


def contents(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message.role.value, message.content) for message in messages]
