"""The children that run code in a container, as the interpreter of a turn sees them."""

import os
from collections import deque
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from spass.core.errors import SandboxUnavailable, SpassError, UpstreamError, UpstreamTimeout
from spass.core.messages import Json
from spass.core.slots import Slots
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.container_pipe import (
    ContainerAnswer,
    ContainerFailed,
    ContainerPipe,
    ContainerTimedOut,
    ContainerUnavailable,
)
from spass.sandbox.launcher import OpenChild, OpenChildren
from spass.sandbox.runner import ContainerRunner

_TYPES: Final = ("Child", "Processor", "Ended")


def to_error(failure: ContainerFailed) -> SpassError:
    """Return the error of a turn whose container failed."""
    if isinstance(failure, ContainerTimedOut):
        return UpstreamTimeout(str(failure))
    return SandboxUnavailable(str(failure)) if isinstance(failure, ContainerUnavailable) else UpstreamError(str(failure))


class ContainerChildren:
    """A launcher of children in the container that is attached. Another container may follow it: the interpreter then runs its
    program again in a child of that one."""

    name: Final = "container"

    def __init__(self) -> None:
        self.slots: Final = Slots(1)
        self._pipe: ContainerPipe | None = None
        self._child: ContainerChild | None = None

    def attach(self, pipe: ContainerPipe) -> None:
        """Use the container behind ``pipe`` from now on."""
        self._pipe = pipe

    def detach(self) -> None:
        """Forget the container, which ends with its child."""
        self._pipe = None
        if self._child is not None:
            self._child.end("ended with its container")

    def deliver(self, message: Mapping[str, Json]) -> bool:
        """Return True if ``message`` of the container is about a child. It is kept for this child."""
        if message.get("type") not in _TYPES:
            return False
        if self._child is not None:
            self._child.take(message)
        return True

    async def start(self, owner_id: str, request: Mapping[str, Json]) -> "ContainerChild":  # noqa: ARG002 (a container is of one turn)
        """Start a child. See ``Launcher.start``. Raise SandboxUnavailable if the container has ended."""
        if self._pipe is None:
            raise SandboxUnavailable("The container of this agent has ended.")
        limits = request["limits"]
        mounts: Json = [[mount.path, mount.writable] for mount in self._pipe.mounts]
        limits = {**limits, "mounts": mounts} if isinstance(limits, Mapping) else limits
        self._pipe.send({"start": {**request, "limits": limits}})
        self._child = ContainerChild(self._pipe)
        return self._child


class ContainerChild:
    """See ``Child``. The container's program passes its lines on and kills it."""

    is_live: Final = True

    def __init__(self, pipe: ContainerPipe) -> None:
        self._pipe: Final = pipe
        self._lines: Final[deque[bytes]] = deque()
        self._seconds = 0.0
        self._fault = ""
        self._has_ended = False

    def send(self, line: Mapping[str, Json]) -> None:
        if self._has_ended:
            raise ChildFailed(self._fault)
        self._pipe.send({"send": line})

    def pause(self) -> None:
        if not self._has_ended:
            self._pipe.send({"pause": True})

    async def receive(self) -> bytes:
        """Return the next line. See ``Child.receive``. Raise SpassError if the container failed."""
        while not self._lines:
            if self._has_ended:
                raise ChildFailed(self._fault)
            await self._read()
        return self._lines.popleft()

    def stop(self, fault: str) -> None:
        self._fault = self._fault or fault
        if not self._has_ended:
            self._pipe.send({"kill": True})

    def cpu_seconds(self) -> float:
        """Return the processor time that the container reported last."""
        return self._seconds

    async def close(self) -> None:
        if not self._has_ended:
            self._pipe.send({"kill": True})
        while not self._has_ended:
            await self._read()

    def take(self, message: Mapping[str, Json]) -> None:
        """Keep what the container says about this child."""
        line, seconds, fault = message.get("line"), message.get("seconds"), message.get("fault")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            self._seconds = max(self._seconds, seconds)
        if message.get("type") == "Ended":
            self.end(fault if isinstance(fault, str) else "")
        elif isinstance(line, str) and not self._has_ended:
            self._lines.append(line.encode("utf-8", "replace"))

    def end(self, fault: str) -> None:
        """Note that the child has ended. A fault that was known before stays."""
        self._has_ended = True
        self._fault = self._fault or fault or "ended unexpectedly"

    async def _read(self) -> None:
        """Wait for the container's next message."""
        try:
            message = await self._pipe.receive()
        except ContainerFailed as failure:
            self.end("ended with its container")
            raise to_error(failure) from failure
        if isinstance(message, ContainerAnswer) or message.effect.get("type") not in _TYPES:
            self.end("ended with its container")
            raise UpstreamError("The container of this agent wrote a line out of order.")
        self.take(message.effect)


_LIFE_SECONDS: Final = 900
"""A turn ends before this. Between two cells its container waits for the model."""
_MAX_CONTAINERS: Final = 32


class ContainerLauncher:
    """Starts a container for each child. As many compute at the same time as there are processors; see ``Slots``.

    Those that wait leave a container of ``runner`` to each that computes. Otherwise children that wait for a processor could have
    all containers, and those that have a processor would wait for a container.
    """

    name: Final = "container"

    def __init__(self, runner: ContainerRunner) -> None:
        self._runner: Final = runner
        processors = max(1, min(os.cpu_count() or 1, runner.max_concurrent - 2))
        self.slots: Final = Slots(processors)
        self._open: Final = OpenChildren(ceiling=runner.max_concurrent - processors - 1)

    @classmethod
    def with_runtime(cls, runtime: str) -> "ContainerLauncher":
        """Return the launcher that uses ``runtime``, docker or podman, and the image that `make sandbox-image` builds."""
        return cls(ContainerRunner(timeout=_LIFE_SECONDS, max_concurrent=_MAX_CONTAINERS, runtime=runtime))

    async def start(self, owner_id: str, request: Mapping[str, Json]) -> "_ContainedChild":
        children = ContainerChildren()
        try:
            async with AsyncExitStack() as stack:
                # The owner stands for the tenant. No child waits here: what computes has a slot, and finds a container free.
                container = self._runner.open({"interpreter": True}, tenant_id=owner_id)
                children.attach(await stack.enter_async_context(container))
                child = await children.start(owner_id, request)
                stack.enter_context(self._open.count_one())
                return _ContainedChild(child, stack.pop_all(), self._open)
        except ContainerFailed as failure:
            raise SandboxUnavailable(str(failure), retry_after=5) from failure


class _ContainedChild(OpenChild):
    """A child with the container that is removed with it. See ``Child``."""

    _has_begun = False

    async def receive(self) -> bytes:
        try:
            line = await super().receive()
        except SpassError as error:
            if not self._has_begun:
                raise SandboxUnavailable(f"The sandbox did not start. {error.message}", retry_after=5) from error
            raise ChildFailed("ended with its container") from error
        self._has_begun = True
        return line
