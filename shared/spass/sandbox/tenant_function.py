"""A function that runs the code of each tenant in machines of its own."""

from dataclasses import dataclass
from typing import Protocol


class FunctionThrottled(Exception):
    """There is no room for the invocation now, or the function is not active yet. It did not run."""


class FunctionLost(Exception):
    """The invocation has no answer. Whether the function ran is unknown."""


@dataclass(frozen=True, slots=True)
class FunctionAnswer:
    """The payload that a function returned. If it failed, ``error`` is the type of the failure, such as ``Runtime.ExitError``."""

    payload: bytes
    error: str | None = None


class TenantFunction(Protocol):
    """A function in the mode that gives each tenant id execution environments of its own."""

    async def invoke(self, tenant_id: str, payload: bytes) -> FunctionAnswer:
        """Invoke the function once. A cancelled caller does not wait for the end: the call must change nothing.

        Raises:
            FunctionThrottled: the function did not run. Try again later.
            FunctionLost: the connection broke, or the service failed.
            InternalError: the service refuses the call (permissions, no such function): a wrong deployment.
        """
        ...
