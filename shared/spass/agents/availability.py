"""Tell which kinds this gateway can run, and which agents a caller can use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.kinds.registry import KINDS
from spass.agents.spec import AgentSpec
from spass.core.code_calls import Sandbox
from spass.core.errors import KindUnavailable, SandboxUnavailable
from spass.models.backends import is_served
from spass.sandbox.launchers import no_sandbox
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Identity

if TYPE_CHECKING:
    from spass.sandbox.foreign.service import ForeignAgents  # not in the bundle of a function

NOT_DEPLOYED: Final = "foreign agents run on a machine of your own, not in a deployed gateway. Start one there with: make run"


class Availability:
    """Tell what can run here. ``sandbox`` returns the place where code runs, and ``foreign_agents`` those of this machine, or
    None in a deployment."""

    def __init__(
        self, sandbox: Callable[[], Sandbox] = no_sandbox, foreign_agents: "Callable[[], ForeignAgents | None]" = lambda: None
    ) -> None:
        self.sandbox = sandbox
        self._foreign_agents = foreign_agents

    @property
    def foreign_agents(self) -> "ForeignAgents":
        """Return the foreign agents of this machine. Raise KindUnavailable if this is a deployment, which has none."""
        foreign_agents = self._foreign_agents()
        if foreign_agents is None:
            raise KindUnavailable(f"This gateway cannot run this agent: {NOT_DEPLOYED}")
        return foreign_agents

    def reason(self, kind: type[BaseAgent]) -> str | None:
        """Return why ``kind`` cannot run, for people, or None if it can."""
        match kind.needs:
            case None:
                return None
            case "code":
                return self.sandbox().unavailable
            case runner:
                foreign_agents = self._foreign_agents()
                return NOT_DEPLOYED if foreign_agents is None else foreign_agents.unavailable(runner)

    def check(self, spec: AgentSpec, agent: BaseAgent) -> None:
        """Check whether ``agent``, which ``spec`` describes, can run.

        Raises:
            SandboxUnavailable: it runs code or a container, which this gateway cannot.
            KindUnavailable: something else is missing.
            InvalidRequest: the agent may not work in its workspace.
        """
        if spec.container is not None:
            spec.container.check()
        if agent.needs is None:
            return
        if agent.needs == "code":
            reason = self.sandbox().unavailable if spec.container is None else None
            if reason is not None:
                raise SandboxUnavailable(f"This gateway cannot run the code of this agent: {reason}")
            return
        from spass.agents.kinds.foreign import ForeignAgent

        if isinstance(agent, ForeignAgent):
            self.foreign_agents.check(agent.foreign_run("", AgentContext()))

    def unusable(self, identity: Identity, config: GatewayConfig, agent: AgentSpec) -> str | None:
        """Return why ``identity`` cannot use ``agent``, for people, or None if it can: its token may not use one of the agent's
        models, no backend serves one, or its kind does not run here. This may start a process, so call it in a thread."""
        models = [agent.model, *([config.defaults.embedding_model] if agent.rag_index is not None else ())]
        for model in models:
            if not identity.allows(model):
                return f"This token may not use the model '{model}', which the agent needs."
            if not is_served(config.llm, model):
                return f"No backend of this gateway serves the model '{model}', which the agent needs."
        kind = KINDS.get(agent.kind)
        if agent.container is not None:
            try:
                agent.container.check()
            except SandboxUnavailable as error:
                return error.message
            if kind.needs == "code":  # it runs in the container
                return None
        return self.reason(kind)
