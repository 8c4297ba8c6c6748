"""Start children that run code inside a container, and pass their lines on to the gateway, which watches their limits."""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from spass.sandbox.child_process import MAX_LINE, ChildFailed, ChildProcess
from spass.sandbox.disk import measure_folder
from spass.sandbox.limits import MAX_FILES

_CHILD: Final = Path(__file__).resolve().parent / "child" / "__main__.py"
_COMMAND: Final = (sys.executable, "-s", "-P", "-S", "-B", "-X", "utf8", str(_CHILD))
_TICK_SECONDS: Final = 0.1

Report = Callable[[Mapping[str, Any]], None]


class ContainerCodeHost:
    """The lines of standard input. Those for a child are passed on; the others are for the kind. One child runs at a time.

    ``report`` sends a line to the gateway: each line of the child, its processor time, and once its end.
    """

    def __init__(self, report: Report) -> None:
        self._report: Final = report
        self._input: Final = asyncio.StreamReader(limit=MAX_LINE * 8)
        self._child: ChildProcess | None = None
        self._folder = ""
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    async def connect(self) -> None:
        """Connect standard input to the event loop."""
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._input), sys.stdin)

    async def next_line(self) -> dict[str, Any] | None:
        """Return the next line that is for the kind, or None after the last one."""
        while line := await self._input.readline():
            message: dict[str, Any] = json.loads(line)
            if "start" in message:
                await self._start(message["start"])
            elif "send" in message:
                if self._child is not None:
                    with suppress(ChildFailed):
                        self._child.send(message["send"])
            elif "pause" in message:
                if self._child is not None:
                    self._child.pause()
            elif "kill" in message:
                self._stop()
            else:
                return message
        return None

    async def close(self) -> None:
        """Kill the child and wait until its end is reported."""
        self._stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, request: Mapping[str, Any]) -> None:
        self._folder = tempfile.mkdtemp(prefix="contained-")
        try:
            self._child = ChildProcess(_COMMAND, folder=Path(self._folder), environment={"PYTHONHASHSEED": "0"})
            await self._child.connect()
        except ChildFailed as failure:
            self._end(str(failure))
            return
        self._child.send(request)
        for work in (self._pass_lines_on(self._child), self._measure(self._child)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_lines_on(self, child: ChildProcess) -> None:
        try:
            while True:
                if (line := await child.receive()) != b"\n":
                    self._report({"type": "Child", "line": line.decode("utf-8", "replace")})
        except ChildFailed as failure:
            self._end(str(failure))

    async def _measure(self, child: ChildProcess) -> None:
        """Report the processor time while it grows, and stop a child that fills its folder."""
        reported = 0.0
        while self._child is child:
            seconds = child.cpu_seconds()
            if seconds - reported >= _TICK_SECONDS / 2:
                self._report({"type": "Processor", "seconds": seconds})
                reported = seconds
            if fault := measure_folder(Path(self._folder), MAX_FILES, child.stopped).fault:
                child.stop(fault)
            await asyncio.sleep(_TICK_SECONDS)

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop("was stopped")

    def _end(self, fault: str) -> None:
        child, self._child = self._child, None
        seconds = 0.0
        if child is not None:
            seconds = child.cpu_seconds()
            child.kill()
        with suppress(RecursionError):  # the folder may be deep; it ends with the container
            shutil.rmtree(self._folder, ignore_errors=True)
        self._report({"type": "Ended", "fault": fault, "seconds": seconds})
