"""The interfaces of launchers, which start children that run programs, and of the function that one of them invokes."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from spass.core.messages import Json
from spass.core.slots import Slots
from spass.sandbox.limits import LIMITS


class RunningProgram(Protocol):
    """A child that runs a program. Its lines are not trusted."""

    def send(self, line: Mapping[str, Json]) -> None:
        """Send a line to a live child, which goes on if it was paused. The line waits in memory until the child reads it. Raise
        ChildFailed if the child has ended."""
        ...

    def pause(self) -> None:
        """Let the child compute nothing until the next ``send``."""
        ...

    async def receive(self) -> bytes:
        """Return the next line. Raise ChildFailed if there is none, or the child has written more than it may."""
        ...

    def stop(self, fault: str) -> None:
        """Kill the child. ``receive`` then raises ``ChildFailed`` with this fault."""
        ...

    def cpu_seconds(self) -> float:
        """Return the processor time that the child has used, or 0 if the launcher cannot tell."""
        ...


class Child(RunningProgram, Protocol):
    """A child that its launcher has started.

    A *live* child waits for the results of its calls to the outside, and for the next cell. Some launchers have none: their
    children end at the first call whose result is not in the journal, before ``Launcher.start`` returns.
    """

    @property
    def is_live(self) -> bool:
        """Return True if the child may wait now. Otherwise end it, and run its program again when it would go on."""
        ...

    async def close(self) -> None:
        """Kill the child, wait for its end, and remove what it left. A cancelled caller waits too."""
        ...


class Launcher(Protocol):
    """Starts children. ``slots`` bounds how many compute at the same time, and shares them among the tenants."""

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> Slots: ...

    async def start(self, owner_id: str, request: Mapping[str, Json]) -> Child:
        """Start a child with ``request`` as its first line. Code of different ``owner_id`` never shares a machine that remembers
        anything. A cancelled start leaves no child.

        Raises:
            ChildFailed: the program is too large for this launcher.
            SandboxUnavailable: the launcher cannot start a child now.
        """
        ...


class OpenChildren:
    """Counts the children of one launcher. ``maximum`` is the number that may wait; None is what fits into half of the machine's
    memory, at most ``ceiling``."""

    def __init__(self, maximum: int | None = None, *, ceiling: int | None = None) -> None:
        fitting = maximum or max(1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // LIMITS.memory)
        self.maximum: Final = fitting if ceiling is None else min(fitting, ceiling)
        self._count = 0

    @property
    def are_too_many(self) -> bool:
        """Return True if a child that begins to wait should be ended."""
        return self._count > self.maximum

    @contextmanager
    def count_one(self) -> Iterator[None]:
        """Count a child during the body."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class OpenChild:
    """A child of a launcher, with what is removed at its end. It may wait while not too many of ``others`` are open. See
    ``Child``."""

    def __init__(self, child: RunningProgram, stack: AsyncExitStack, others: OpenChildren) -> None:
        self._child: Final = child
        self._stack: Final = stack
        self._others: Final = others
        self.send: Final = child.send
        self.pause: Final = child.pause
        self.stop: Final = child.stop
        self.cpu_seconds: Final = child.cpu_seconds

    @property
    def is_live(self) -> bool:
        return not self._others.are_too_many

    async def receive(self) -> bytes:
        return await self._child.receive()

    async def close(self) -> None:
        await self._stack.aclose()


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
