"""The sandbox of a gateway that cannot run code."""

from spass.core.code_calls import Interpreter
from spass.core.errors import SandboxUnavailable


class NoSandbox:
    """Refuse all code. ``unavailable`` is the reason, for people."""

    name = "none"

    def __init__(self, unavailable: str) -> None:
        self.unavailable = unavailable

    def open(self, tenant_id: str, owner_id: str) -> Interpreter:  # noqa: ARG002
        """Refuse.

        Raises:
            SandboxUnavailable: always.
        """
        raise SandboxUnavailable(f"This gateway cannot run code: {self.unavailable}")


def no_sandbox() -> NoSandbox:
    """Return the sandbox of a process that runs no code."""
    return NoSandbox("this process has no sandbox.")
