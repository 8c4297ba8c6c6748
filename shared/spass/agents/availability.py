"""The kinds that this gateway can run."""

from collections.abc import Callable

from spass.agents.kinds.base import BaseAgent
from spass.core.code_calls import Sandbox
from spass.core.errors import KindUnavailable, SandboxUnavailable
from spass.sandbox.none import no_sandbox

_NO_HARNESS = "foreign agents run on a machine of your own, and this process has none of their runners."


class Availability:
    """Tell which kinds can run here. ``sandbox`` returns the place where code runs."""

    def __init__(self, sandbox: Callable[[], Sandbox] = no_sandbox) -> None:
        self.sandbox = sandbox

    def reason(self, kind: type[BaseAgent]) -> str | None:
        """Return why ``kind`` cannot run, for people, or None if it can."""
        match kind.needs:
            case None:
                return None
            case "code":
                return self.sandbox().unavailable
            case _:
                return _NO_HARNESS

    def check(self, kind: type[BaseAgent]) -> None:
        """Check whether ``kind`` can run.

        Raises:
            SandboxUnavailable: it runs code, which this gateway cannot.
            KindUnavailable: something else is missing.
        """
        reason = self.reason(kind)
        if reason is not None and kind.needs == "code":
            raise SandboxUnavailable(f"This gateway cannot run the code of this agent: {reason}")
        if reason is not None:
            raise KindUnavailable(f"This gateway cannot run this agent: {reason}")
