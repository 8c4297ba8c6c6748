"""Run a program that reads one request and writes one answer."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from spass.core.messages import Json
from spass.sandbox.answers import AnswerReader
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.program import Program


class ChildTimedOut(ChildFailed):
    """The child did not end in time. It was killed."""


async def run_child(
    command: Sequence[str],
    request: Mapping[str, Json],
    *,
    environment: Mapping[str, str],
    folder: Path,
    timeout: float,  # noqa: ASYNC109
    secrets: Sequence[str] = (),
    grace: float = 0,
) -> dict[str, Json]:
    """Run ``command`` in ``folder`` for at most ``timeout`` seconds and return the JSON object that it answers.

    The program reads ``request`` as one line of JSON from stdin and writes the answer between ``OUTPUT_START`` and
    ``OUTPUT_END``. It has the variables of ``environment`` and no others. ``secrets`` and ``grace`` are those of ``Program``.
    However this ends, no process of the program's group is left.

    Raises:
        ChildTimedOut: the time is over.
        ChildFailed: the program failed, wrote too much, or wrote anything but one answer.
    """
    program = Program(command, environment=environment, folder=folder, secrets=secrets, grace=grace)
    answer = AnswerReader()
    try:
        async with asyncio.timeout(timeout), program:
            program.send(request)
            program.end_input()
            while (line := await program.read_line()) is not None:
                answer.add(line)
            await program.wait()
        return answer.answer()
    except TimeoutError:
        raise ChildTimedOut(f"did not end within {timeout:g} seconds") from None
    except ChildFailed as failure:
        raise ChildFailed(program.describe(str(failure))) from None
