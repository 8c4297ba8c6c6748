"""The kinds that this gateway can run."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.core.code_calls import Sandbox
from spass.core.effects import ForeignRun, ForeignRunner
from spass.core.errors import KindUnavailable, SandboxUnavailable
from spass.core.messages import Json
from spass.sandbox.none import no_sandbox

NOT_DEPLOYED: Final = "foreign agents run on a machine of your own, not in a deployed gateway. Start one there with: make run"


class ForeignAgents(Protocol):
    """The foreign agents of a machine."""

    def unavailable(self, runner: ForeignRunner) -> str | None:
        """Return why ``runner`` cannot run, for people, with the command that helps, or None if it can."""
        ...

    def check(self, spec: ForeignRun) -> None:
        """Check whether ``spec`` can run, before any work.

        Raises:
            InvalidRequest: a value is not allowed.
            KindUnavailable: something is missing.
        """
        ...

    async def run(self, spec: ForeignRun, *, model: str, owner: str) -> Mapping[str, Json]:
        """Return what the runner answers.

        Raises:
            SpassError: the run failed.
        """
        ...


def no_foreign_agents() -> ForeignAgents | None:
    """Return None: this process runs no foreign agents."""
    return None


class Availability:
    """Tell which kinds can run here. ``sandbox`` returns the place where code runs, and ``foreign_agents`` those of
    this machine, or None in a deployment."""

    def __init__(
        self, sandbox: Callable[[], Sandbox] = no_sandbox, foreign_agents: Callable[[], ForeignAgents | None] = no_foreign_agents
    ) -> None:
        self.sandbox = sandbox
        self._foreign_agents = foreign_agents

    @property
    def foreign_agents(self) -> ForeignAgents:
        """Return the foreign agents of this machine.

        Raises:
            KindUnavailable: this is a deployment, which has none.
        """
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

    def check(self, agent: BaseAgent) -> None:
        """Check whether ``agent`` can run.

        Raises:
            SandboxUnavailable: it runs code, which this gateway cannot.
            KindUnavailable: something else is missing.
            InvalidRequest: the agent may not work in its workspace.
        """
        reason = self.sandbox().unavailable if agent.needs == "code" else None
        if reason is not None:
            raise SandboxUnavailable(f"This gateway cannot run the code of this agent: {reason}")
        if agent.needs in (None, "code"):
            return
        from spass.agents.kinds.foreign import ForeignAgent

        if isinstance(agent, ForeignAgent):
            self.foreign_agents.check(agent.foreign_run("", AgentContext()))
