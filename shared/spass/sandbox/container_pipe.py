"""A running container: what it asks for, its answer, its time, and its removal."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json
from spass.core.text_checks import end_sentence
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.mounts import Mount, check_unchanged
from spass.sandbox.orphans import remove_container, remove_orphans
from spass.sandbox.program import Program
from spass.sandbox.program_answer import EFFECT, AnswerReader

_MAX_DEPTH: Final = 96
"""Levels of an effect: the levels of a request, and the levels around its values."""
_NOT_STARTED: Final = 125
"""The exit code of docker and podman when they did not start the container, for example without the image."""
_MAX_LINES: Final = 200_000
"""Lines that a container may write: reading 100 MB of empty lines would take the gateway a minute."""


class ContainerFailed(RuntimeError):
    """A container did not start, failed, or broke the protocol. The message is for people and contains no secret."""


class ContainerTimedOut(ContainerFailed):
    """A container took longer than it may. It was removed."""


class ContainerUnavailable(ContainerFailed):
    """This machine cannot start the container. The message says what to do."""


@dataclass(frozen=True, slots=True)
class ContainerEffect:
    """The program in the container asks for an effect, and waits for a line."""

    effect: dict[str, Json]


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """The program in the container has ended with an answer."""

    answer: dict[str, Json]


ContainerMessage: TypeAlias = ContainerEffect | ContainerAnswer


class ContainerPipe:
    """The standard streams of a container. Close it also after an error.

    ``command`` starts the container ``name``; its first item is the runtime, its last the image. ``timeout`` is in seconds. No
    error contains ``secrets``.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        mounts: Sequence[Mount],
        secrets: Sequence[str],
        timeout: float,
    ) -> None:
        self._name: Final = name
        self._runtime: Final = command[0]
        self._advice: Final = (
            f"Check that `{Path(command[0]).name} info` works and that the image {command[-1]} is there: "
            "`make sandbox-image` builds spass-sandbox."
        )
        self._environment: Final = environment
        self.mounts: Final = mounts
        self._timeout: Final = timeout
        self._program: Final = Program(command, environment=environment, folder=Path("/"), secrets=secrets)
        self._answer: Final = AnswerReader()
        self._lines = 0
        self._timer: asyncio.TimerHandle | None = None
        self._removal: asyncio.Future[None] | None = None
        self._is_late = False
        self._may_exist = False

    async def start(self, payload: Mapping[str, Json]) -> None:
        """Remove orphans, start the container and send it ``payload``.

        Raises:
            ContainerUnavailable: the runtime cannot be started.
            MountRefused: a mount has changed since it was checked.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, remove_orphans, self._runtime, self._environment)
        check_unchanged(self.mounts)
        self._may_exist = True
        try:
            await self._program.__aenter__()
        except ChildFailed as failure:
            raise ContainerUnavailable(f"The container {failure}.") from None
        self._timer = loop.call_later(self._timeout, self._stop_late)
        check_unchanged(self.mounts)
        self._program.send(payload)

    def send(self, line: Mapping[str, Json]) -> None:
        """Send the result of an effect."""
        self._program.send(line)

    def end_input(self) -> None:
        """Close the container's standard input."""
        self._program.end_input()

    async def receive(self) -> ContainerMessage:
        """Return the next effect, or the answer after the program has ended.

        Raises:
            ContainerFailed: the program failed or broke the protocol.
            ContainerTimedOut: the container took too long.
            ContainerUnavailable: the runtime could not start the container.
        """
        try:
            return await self._receive()
        except ChildFailed as failure:
            if self._is_late:
                raise ContainerTimedOut(f"The container took longer than {self._timeout:g} seconds and was removed.") from None
            reason = f"The container {end_sentence(self._program.describe(str(failure)).rstrip('.'))}"
            if self._program.exit_code == _NOT_STARTED:
                raise ContainerUnavailable(f"{reason} {self._advice}") from None
            raise ContainerFailed(reason) from None

    async def _receive(self) -> ContainerMessage:
        while (line := await self._program.read_line()) is not None:
            self._lines += 1
            if self._lines > _MAX_LINES:
                raise ChildFailed(f"wrote more than {_MAX_LINES} lines")
            if line.startswith(EFFECT) and not self._answer.has_begun:
                try:
                    return ContainerEffect(read_object(line.removeprefix(EFFECT), max_depth=_MAX_DEPTH))
                except InvalidJson:  # its reason may quote the effect
                    raise ChildFailed("wrote an effect that is not a valid JSON object") from None
            self._answer.add(line)
            if self._answer.is_complete:
                self._program.end_input()  # a program that waits for a line now ends
        await self._program.wait()
        answer = self._answer.answer()
        self._may_exist = False
        return ContainerAnswer(answer)

    async def close(self) -> None:
        """Remove the container, unless it has ended. If the task is cancelled meanwhile, a thread completes this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._may_exist:
            self._remove()
        if self._removal is not None:
            await asyncio.shield(self._removal)

    def _stop_late(self) -> None:
        self._is_late = True
        self._remove()

    def _remove(self) -> None:
        """Kill the runtime's client first: otherwise it could create the container after the removal."""
        self._program.kill()
        if self._removal is None:
            loop = asyncio.get_running_loop()
            self._removal = loop.run_in_executor(None, remove_container, self._runtime, self._environment, self._name)
