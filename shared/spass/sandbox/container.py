"""The launcher ``container``: each turn's code runs in a container of its own, without network and mounts."""

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from spass.core.errors import SandboxUnavailable, SpassError
from spass.core.messages import Json
from spass.core.slots import Slots
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.container_child import ContainerChild, ContainerChildren
from spass.sandbox.container_pipe import ContainerFailed
from spass.sandbox.open_children import OpenChildren
from spass.sandbox.runner import ContainerRunner

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
        """Start a container with a child. See ``Launcher.start``."""
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


class _ContainedChild:
    """A child with the container that is removed with it. See ``Child``."""

    def __init__(self, child: ContainerChild, stack: AsyncExitStack, others: OpenChildren) -> None:
        self._others: Final = others
        self._child: Final = child
        self._stack: Final = stack
        self._has_begun = False
        self.send: Final = child.send
        self.pause: Final = child.pause
        self.stop: Final = child.stop
        self.cpu_seconds: Final = child.cpu_seconds

    @property
    def is_live(self) -> bool:
        return not self._others.are_too_many

    async def receive(self) -> bytes:
        """Return the next line. See ``Child.receive``.

        Raises:
            SandboxUnavailable: the container ended before its first line. The message says why, for people.
        """
        try:
            line = await self._child.receive()
        except SpassError as error:
            if not self._has_begun:
                raise SandboxUnavailable(f"The sandbox did not start. {error.message}", retry_after=5) from error
            raise ChildFailed("ended with its container") from error
        self._has_begun = True
        return line

    async def close(self) -> None:
        """Remove the container. See ``Child.close``."""
        await self._stack.aclose()
