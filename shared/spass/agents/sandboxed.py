"""Run a kind in a container. The driver performs its effects; the container performs nothing but code."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from spass.agents.driver import Driver
from spass.agents.kinds.base import AgentContext, AgentResult, BaseAgent, Runner
from spass.agents.kinds.foreign import ForeignAgent
from spass.agents.kinds.registry import KINDS
from spass.agents.kinds.source import Source
from spass.core.bus import EVENT_TYPES, EventBus, EventType
from spass.core.code_calls import Interpreter
from spass.core.codec import encode_message
from spass.core.effect_codec import decode_effect
from spass.core.effects import Answer, Effect, Infer, RunForeign, Steps
from spass.core.errors import InternalError, SandboxUnavailable, UpstreamError
from spass.core.messages import Json
from spass.sandbox.container_child import ContainerChildren, to_error
from spass.sandbox.container_pipe import ContainerAnswer, ContainerFailed, ContainerPipe
from spass.sandbox.runner import ContainerRunner

if TYPE_CHECKING:
    from spass.agents.spec import ContainerSettings

_ENDS: Final = ("Answer", "Failure")
_MAX_FAILURE: Final = 500  # characters of an error that a container reports


@dataclass(frozen=True, kw_only=True)
class SandboxedAgent(BaseAgent):
    """Run ``agent`` in a container of ``runner``.

    ``engine`` is a driver that replaces that of ``run``. ``model`` replaces the model of the driver. ``workspace`` is the folder
    in which the container starts, and replaces the parameter of that name if the kind has one. ``mounts`` are paths of this
    machine that the container sees. ``secrets`` are part of its input. ``bus`` gets the events of ``run``.
    """

    agent: BaseAgent
    runner: ContainerRunner
    engine: Driver | None = None
    model: str = ""
    workspace: str = ""
    mounts: Sequence[str] = field(default_factory=list)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    bus: EventBus | None = None

    system_prompt: str = field(init=False)
    temperature: float = field(init=False)
    max_tokens: int = field(init=False)
    accepts_tools: bool = field(init=False)  # type: ignore[misc]  # the class of the agent decides
    multi_turn: bool = field(init=False)  # type: ignore[misc]
    max_turns: int | None = field(init=False)

    def __post_init__(self) -> None:
        key_of(type(self.agent))
        for name in ("system_prompt", "temperature", "max_tokens", "accepts_tools", "multi_turn"):
            object.__setattr__(self, name, getattr(self.agent, name))
        object.__setattr__(self, "max_turns", getattr(self.agent, "max_turns", None))

    def steps(self, input: str, context: AgentContext) -> Steps:
        """Return the generator of the agent, which runs in this process and not in the container."""
        return self.agent.steps(input, context)

    def open(self, input: str, context: AgentContext, tenant_id: str) -> Source:
        """Return the source of effects of one turn: a container."""
        return _ContainerSource(self, input, context, tenant_id)

    async def run(self, input: str, context: AgentContext, driver: Runner) -> AgentResult:
        """Run one turn and return its result.

        Raises:
            SpassError: the turn failed.
            RuntimeError: the runtime is missing.
            ValueError: a mount, the allow-list or the workspace is refused.
        """
        self.runner.check(self.workspace, self.mounts)
        performer = self.engine or driver
        with _pass_events_to(performer, self.bus):
            return await super().run(input, context, performer)

    @property
    def inner(self) -> BaseAgent:
        """Return the agent with the workspace that replaces its own, if its kind has one."""
        if self.workspace and isinstance(self.agent, ForeignAgent):
            return replace(self.agent, workspace=self.workspace)
        return self.agent

    def payload(self, input: str, context: AgentContext) -> dict[str, Json]:
        """Return the container's input, without the workspace and the secrets."""
        return {
            "prompt": input,
            "agent_id": key_of(type(self.agent)),
            "model": self.model,
            "params": {item.name: encode_message(getattr(self.inner, item.name)) for item in dataclasses.fields(self.agent)},
            "context": encode_message(context),
        }


def contain(agent: BaseAgent, settings: "ContainerSettings") -> SandboxedAgent:
    """Return ``agent`` in a container. All agents with the same settings share the limit of containers at a time."""
    runner = _runner(settings.image, settings.timeout, settings.mount_allowlist, settings.runtime)
    return SandboxedAgent(agent=agent, runner=runner, workspace=settings.workspace, mounts=settings.mounts)


@cache
def _runner(image: str, timeout: float, mount_allowlist: str, runtime: str) -> ContainerRunner:
    return ContainerRunner(image=image, timeout=timeout, mount_allowlist_path=mount_allowlist, runtime=runtime)


def key_of(kind: type[BaseAgent]) -> str:
    """Return the canonical key of a kind. Raise ValueError if the kind is not registered, so that no image can contain it."""
    for key in KINDS.keys():  # noqa: SIM118 (KINDS is not a dict)
        if KINDS.get(key) is kind:
            return KINDS.canonical(key)
    raise ValueError(f"{kind.__name__} is not a registered agent kind. A container runs only kinds that its image contains.")


class _ContainerSource:
    """The effects of a kind that runs in a container. See ``Source``."""

    def __init__(self, agent: SandboxedAgent, input: str, context: AgentContext, tenant_id: str) -> None:
        self._agent: Final = agent
        self._tenant_id: Final = tenant_id
        self._input: Final = input
        self._context: Final = context
        self._stack: Final = AsyncExitStack()
        self._pipe: ContainerPipe | None = None
        self._children = ContainerChildren()
        self._interpreter: Interpreter | None = None

    @property
    def interpreter(self) -> Interpreter:
        """Return the interpreter whose code runs in the container."""
        if self._interpreter is None:
            from spass.sandbox.interpreter import TurnInterpreter  # it imports pydantic, which only code needs

            self._interpreter = TurnInterpreter(self._children, self._tenant_id, "")
        return self._interpreter

    def take_over(self, previous: Source) -> None:
        """Go on with the interpreter of ``previous``. It runs the code of the turn again when more code follows."""
        if isinstance(previous, _ContainerSource):
            self._children, self._interpreter = previous._children, previous._interpreter  # noqa: SLF001 (of the same class)

    async def start(self) -> Effect | Answer:
        agent = self._agent
        container = agent.runner.open(
            agent.payload(self._input, self._context),
            tenant_id=self._tenant_id,
            workspace=agent.workspace,
            mounts=agent.mounts,
            secrets=agent.secrets,
        )
        try:
            self._pipe = await self._stack.enter_async_context(container)
        except ContainerFailed as failure:
            raise to_error(failure) from failure
        except ValueError as error:  # its message names paths of this machine
            raise SandboxUnavailable("The container of this agent cannot start, because a mount is refused.") from error
        self._children.attach(self._pipe)
        return await self._next()

    async def send(self, result: object) -> Effect | Answer:
        self._running_pipe.send({"result": encode_message(result)})
        return await self._next()

    async def interrupt(self) -> Effect | Answer | None:
        self._running_pipe.send({"interrupt": True})
        message = await self._receive()
        return None if message == {"type": "Unhandled"} else self._read(message)

    async def close(self) -> None:
        """Remove the container. See ``Source.close``."""
        self._children.detach()
        try:
            if self._interpreter is not None:
                await self._interpreter.close()
        finally:
            with suppress(ContainerFailed):
                await self._stack.aclose()

    @property
    def _running_pipe(self) -> ContainerPipe:
        if self._pipe is None:
            raise RuntimeError("the run has not started")
        return self._pipe

    async def _next(self) -> Effect | Answer:
        return self._read(await self._receive())

    async def _receive(self) -> Mapping[str, Json]:
        """Return the next message that is not about a child."""
        while True:
            try:
                message = await self._running_pipe.receive()
            except ContainerFailed as failure:
                raise to_error(failure) from failure
            if isinstance(message, ContainerAnswer):
                return _answer(message.answer)
            if not self._children.deliver(message.effect):
                return message.effect if message.effect.get("type") not in _ENDS else {}

    def _read(self, message: Mapping[str, Json]) -> Effect | Answer:
        """Return the effect, with the model that replaces the driver's. Raise InternalError if the kind failed in the container,
        and UpstreamError if the message is not an effect that this kind may ask for."""
        if message.get("type") == "Failure":
            raise InternalError(str(message.get("message"))[:_MAX_FAILURE])
        try:
            effect = decode_effect(message)
        except ValueError:  # whose message may quote the container
            raise UpstreamError("The container of this agent asked for something that is not an effect.") from None
        if isinstance(effect, RunForeign):
            return self._checked_run(effect)
        if isinstance(effect, Infer) and effect.model is None and self._agent.model:
            return replace(effect, model=self._agent.model)
        return effect

    def _checked_run(self, effect: RunForeign) -> RunForeign:
        """Return the run that this agent asks for, with its key, which the container does not have. Raise UpstreamError if the
        container asked for another one."""
        agent = self._agent.inner
        if isinstance(agent, ForeignAgent):
            spec = agent.foreign_run(self._input, self._context)
            if effect.spec == replace(spec, api_key=""):
                return RunForeign(spec)
        raise UpstreamError("The container of this agent asked for a foreign agent that its kind does not use.")


def _answer(answer: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return an answer that has a type. The answer of a plain program has none."""
    if "type" in answer:
        return answer if answer["type"] in _ENDS else {}
    return {"type": "Answer", "content": answer.get("content"), "metadata": answer.get("metadata", {})}


@contextmanager
def _pass_events_to(driver: Runner, bus: EventBus | None) -> Iterator[None]:
    """Pass the events of the driver's request on to ``bus``."""
    if bus is None or not isinstance(driver, Driver):
        yield
        return
    request = driver.scope.caller.request_id

    def pass_on(event_type: EventType[Any], event: Any) -> None:  # noqa: ANN401 (of the type's class)
        if event.request_id == request:
            bus.publish(event_type, lambda: event)

    sources = {id(source): source for source in (driver.bus, driver.scope.bus)}.values()
    ends = [source.subscribe(kind, partial(pass_on, kind)) for source in sources for kind in EVENT_TYPES]
    try:
        yield
    finally:
        for end in ends:
            end()
