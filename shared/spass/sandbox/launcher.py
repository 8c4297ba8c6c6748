"""The interface of launchers, which start children that run programs."""

from collections.abc import Mapping
from typing import Protocol

from spass.core.messages import Json
from spass.core.slots import Slots


class Child(Protocol):
    """A child that runs a program. Its lines are not trusted.

    A *live* child waits for the results of its calls to the outside, and for the next cell. Some launchers have none: their
    children end at the first call whose result is not in the journal, before ``Launcher.start`` returns.
    """

    @property
    def is_live(self) -> bool:
        """Return True if the child may wait now. Otherwise end it, and run its program again when it would go on."""
        ...

    def send(self, line: Mapping[str, Json]) -> None:
        """Send a line to a live child, which goes on if it was paused. The line waits in memory until the child reads it.

        Raises:
            ChildFailed: the child has ended.
        """
        ...

    def pause(self) -> None:
        """Let the child compute nothing until the next ``send``."""
        ...

    async def receive(self) -> bytes:
        """Return the next line.

        Raises:
            ChildFailed: there is none, or the child has written more than it may.
        """
        ...

    def stop(self, fault: str) -> None:
        """Kill the child. ``receive`` then raises ``ChildFailed`` with this fault."""
        ...

    def cpu_seconds(self) -> float:
        """Return the processor time that the child has used, or 0 if the launcher cannot tell."""
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
