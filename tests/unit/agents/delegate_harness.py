"""Agents that delegate to each other, over the real pipeline and tools; only the provider is scripted."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from spass.agents.delegates import AgentDelegates
from spass.agents.engine import Engine
from spass.agents.registry import AgentRegistry
from spass.agents.spec import DEFAULT_KIND, AgentSpec, file_model
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.events import Event, Nested, ToolCallFinished, ToolCallStarted
from spass.core.messages import Message, TokenUsage, ToolCall
from spass.models.errors import AttemptFailed
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.tenancy.settings import Cascade
from spass.testing.model import Answer, ScriptedModel
from spass.tools.chat_models import ChatModels
from tests.unit.agents.engine_harness import CONFIG, spoken
from tests.unit.tools.fakes import FakeReader, FakeServices, rag_with, table_of, toolbox_of

Line = Message | ChatDelta | AttemptFailed | AsyncGenerator[ChatDelta, None]


def agent(name: str, *delegates: str, **fields: object) -> AgentSpec:
    """Return an agent whose system prompt is its name, so that a request tells who asks."""
    own = {"name": name, "model": "talker", "system_prompt": name, "workspace": "default", "delegates": [*delegates]}
    file = file_model(str(fields.get("kind", DEFAULT_KIND)))
    return file.model_validate({**own, "tools": ["delegate", "calculator"], **fields}).spec()


@dataclass
class Company:
    """The ``agents``, and what each of them says in turn. The last line of an agent repeats."""

    agents: Sequence[AgentSpec]
    lines: Mapping[str, list[Line]]
    reader: FakeReader = field(default_factory=FakeReader)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = ScriptedModel(self._answer)
        router = Router(CONFIG.llm, CONFIG.models, lambda name: "key", provider_of=lambda *_: self.model)
        cascade = Cascade(CONFIG)
        calls = Calls(CONFIG, router, cascade)
        models = ChatModels(calls, CONFIG)
        services = FakeServices(rag=rag_with(self.reader), tool_models=models, cascade=cascade)
        toolbox = toolbox_of(services=services)
        self.engine = Engine(calls, toolbox, lambda: self.reader, cascade)
        registry = AgentRegistry(self.agents)
        services.delegates = AgentDelegates(self.engine, lambda: registry)

    def _answer(self, request: ChatRequest, context: CallContext) -> Answer | AsyncGenerator[ChatDelta, None]:
        context.attempt.sent = True
        name = _name_in(request)
        self.asked.append(name)
        lines = self.lines[name]
        line = lines.pop(0) if len(lines) > 1 else lines[0]
        return line if isinstance(line, AsyncGenerator) else spoken(line, stream=request.stream)

    def run(self, scope: Scope, name: str | None = None) -> AsyncGenerator[Event, None]:
        """Return the events of a turn of an agent, by default the first one."""
        spec = next((spec for spec in self.agents if spec.name == name), self.agents[0])
        return self.engine.run(scope, spec, "Please.")

    async def events(self, scope: Scope, name: str | None = None) -> list[Event]:
        return [event async for event in self.run(scope, name)]

    def requests_of(self, name: str) -> list[ChatRequest]:
        return [request for request in self.model.requests if _name_in(request) == name]


def _name_in(request: ChatRequest) -> str:
    """Return the name of the agent that asks. The input defence may add to its prompt."""
    return request.messages[0].content.split()[0]


def audited_usage(scope: Scope) -> TokenUsage:
    """Return the tokens of all recorded calls."""
    total = TokenUsage()
    for put in table_of(scope).written:
        prompt, completion = (int(str(put.attributes.get(f"{name}_tokens", 0))) for name in ("prompt", "completion"))
        total += TokenUsage(prompt, completion)
    return total


def nested_starts(events: Sequence[Event]) -> list[ToolCall]:
    """Return the nested calls in the order in which they started."""
    nested = [event.event for event in events if isinstance(event, Nested)]
    return [event.call for event in nested if isinstance(event, ToolCallStarted)]


def nested_ends(events: Sequence[Event]) -> list[tuple[str, str, str, bool]]:
    """Return agent, parent, tool and success of the nested calls, in the order in which they ended."""
    return [
        (event.agent, event.parent_id, event.event.outcome.call.name, event.event.outcome.ok)
        for event in events
        if isinstance(event, Nested) and isinstance(event.event, ToolCallFinished)
    ]
