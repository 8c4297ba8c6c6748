"""The launcher ``process``: each child is a process of this machine, confined by seccomp, Landlock and limits of its own."""

import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, cast

from spass.core.errors import SandboxUnavailable
from spass.core.messages import Json
from spass.core.slots import Slots
from spass.sandbox.child_disk import start_in_folder
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.launcher import OpenChild, OpenChildren
from spass.sandbox.limits import MAX_FILES

CHILD: Final = Path(__file__).resolve().parent / "child" / "__main__.py"
_FOLDER_PREFIX: Final = "spass-code-"
_LANDLOCK_REQUIRED: Final = 1


class ProcessLauncher:
    """Starts a process for each turn. As many compute at the same time as there are processors; see ``Slots``.

    Others wait, for the outside or for the next cell, and keep their memory. When there are more than ``max_open`` children in
    all, those that begin to wait are ended, and their programs are run again.
    """

    name: Final = "process"

    def __init__(
        self,
        *,
        temporary: Path | None = None,
        python: str = sys.executable,
        slots: int | None = None,
        max_open: int | None = None,
    ) -> None:
        """``temporary``: the folder in which each child gets its scratch folder; None is the system's. ``max_open``: None is the
        number of children that fit into half of the machine's memory."""
        self._temporary: Final = temporary
        self._command: Final = [python, "-s", "-P", "-S", "-X", "utf8", str(CHILD)]
        self.slots: Final = Slots(slots or os.cpu_count() or 1)
        self._open: Final = OpenChildren(max_open)

    async def start(self, owner_id: str, request: Mapping[str, Json]) -> OpenChild:  # noqa: ARG002 (nothing outlives a child)
        try:
            async with AsyncExitStack() as stack:
                child = start_in_folder(
                    self._command, _FOLDER_PREFIX, _environment, self._temporary, max_files=MAX_FILES, watches_removed=True
                )
                process = await stack.enter_async_context(child)
                process.send(_with_landlock(request))
                stack.enter_context(self._open.count_one())
                return OpenChild(process, stack.pop_all(), self._open)
        except ChildFailed as failure:
            message = "The sandbox cannot start a process now. Try again later, or answer without running code."
            raise SandboxUnavailable(message, retry_after=5) from failure


def _with_landlock(request: Mapping[str, Json]) -> dict[str, Json]:
    """Return ``request`` for a child that refuses to run without Landlock: here other users' files are near."""
    limits = cast("Mapping[str, Json]", request["limits"])
    return {**request, "limits": {**limits, "landlock": _LANDLOCK_REQUIRED}}


def _environment(_: Path) -> dict[str, str]:
    environment = {"PYTHONHASHSEED": "0"}
    if libraries := os.environ.get("LD_LIBRARY_PATH"):  # Lambda's interpreter does not start without it
        environment["LD_LIBRARY_PATH"] = libraries
    return environment
