"""Run agent kinds over the models of ``gateway.yaml`` in code beside the gateway. ``spass.llm`` offers ``driver``."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from spass.agents.driver import Driver, OpenCode, ShortenHistory
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.performers.code import CodePerformer
from spass.aws.clients import TenantStore
from spass.calls.process_router import get_router
from spass.calls.scope import REQUEST_SECONDS, Scope
from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.cost import CostTally
from spass.core.effects import Infer
from spass.core.errors import InvalidRequest
from spass.core.events import CallEvent, Event
from spass.core.ids import RequestId, TenantId, new_id
from spass.core.messages import ToolCall
from spass.llm.types import ChatDelta, ChatRequest
from spass.sandbox.launchers import select_sandbox
from spass.tenancy.identity import Caller, Identity


def driver(model: str, *, agent_id: str | None = None, seconds: float = REQUEST_SECONDS, bus: EventBus = EMPTY_BUS) -> Driver:
    """Return a driver for one run of an agent kind, whose model calls are those of ``complete``: by default they are calls of
    ``model``, and usage is counted for ``agent_id``. All its work must end within ``seconds``. Code of the kind runs in the
    sandbox of this machine, or in the container of a ``SandboxedAgent``. The driver has no tools and no memory of operators.

    Raises:
        ConfigError: gateway.yaml is missing or wrong.
    """
    tenant = TenantId("in-process")
    identity = Identity(tenant, "in-process", admin=False, allowed_models=("*",))
    caller = Caller(identity, None, RequestId(new_id("req")), None, 0, "in-process")
    store = cast("TenantStore", _NoStore(tenant))
    scope = Scope.for_request(caller, store, seconds=seconds, bus=bus)
    infer = _Inference(model, agent_id, scope.tally)

    def open_code() -> CodePerformer:
        return CodePerformer(scope, lambda _: infer, lambda _, calls: _refuse(calls), (), select_sandbox, str)

    return _InProcessDriver(infer, scope, open_code)


@dataclass(frozen=True, slots=True)
class _NoStore:
    """The store of a run of which nothing is stored: it needs no AWS."""

    tenant: TenantId


class _InProcessDriver(Driver):
    """A driver that samples as the kind which it runs says."""

    def __init__(self, infer: "_Inference", scope: Scope, open_code: OpenCode) -> None:
        super().__init__(infer, _refuse, scope, open_code=open_code, bus=scope.bus)
        self._infer = infer

    def run(
        self,
        agent: BaseAgent,
        input: str,
        context: AgentContext | Callable[[], Awaitable[AgentContext]],
        shorten_history: ShortenHistory | None = None,
    ) -> AsyncGenerator[Event, None]:
        """See ``Driver.run``."""
        self._infer.agent = agent
        return super().run(agent, input, context, shorten_history)


class _Inference:
    """See ``Inference``."""

    def __init__(self, model: str, agent_id: str | None, tally: CostTally) -> None:
        self.agent: BaseAgent | None = None
        self._model = model
        self._agent_id = agent_id
        self._tally = tally
        self._calls = get_router()

    def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        request = ChatRequest(
            effect.model or self._model,
            tuple(effect.messages),
            temperature=effect.temperature if effect.temperature is not None or self.agent is None else self.agent.temperature,
            max_tokens=effect.max_tokens if effect.max_tokens is not None or self.agent is None else self.agent.max_tokens,
            stop=effect.stop,
            stream=True,
        )
        return self._calls.chat(request, agent_id=self._agent_id, tally=self._tally)

    def begins_thinking(self, effect: Infer) -> bool:
        return self._calls.begins_thinking(effect.model or self._model)


async def _refuse(calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
    """Refuse to call tools: this driver has none.

    Raises:
        InvalidRequest: always.
    """
    for call in calls:
        raise InvalidRequest(f"This driver has no tool {call.name!r}. Ask a gateway, which has tools, with spass.Spass().ask.")
        yield
