"""Keep a deployed sandbox active: Lambda makes a function in a VPC inactive after two weeks without a call."""

import re
from typing import Final

from spass.core.code_calls import Sandbox, refuse_requests
from spass.core.effects import Cell
from spass.core.errors import InternalError

_OWNER_ID: Final = "sweep"  # neither a user has it, whose ids are hashes, nor code of a tenant runs here
_CELL: Final = Cell("""
import os
for process in sorted({1, os.getppid()}):
    for name in ("mem", "environ"):
        try:
            os.close(os.open(f"/proc/{process}/{name}", os.O_RDONLY))
        except OSError:
            continue
        print(f"{name} of process {process}")
print(6 * 7)
""")
"""The kernel of Lambda has no Landlock, so only its own rights keep code out of the memory of processes of the same user."""
_OPENED: Final = re.compile(r"(?m)^(?:mem|environ) of process \d+$")
_OUTPUT: Final = "42\n"


async def keep_function_active(sandbox: Sandbox) -> bool:
    """Run a line of code if the sandbox is a Lambda function. Return whether it is one.

    Raises:
        SandboxUnavailable: the sandbox does not answer.
        InternalError: it does not run code as it should.
    """
    if sandbox.name != "lambda":
        return False
    interpreter = sandbox.open(_OWNER_ID, _OWNER_ID)
    try:
        result = await interpreter.run(_CELL, (), refuse_requests)
    finally:
        await interpreter.close()
    if result.error is None and (opened := _OPENED.findall(result.output)):
        raise InternalError(f"Code in the sandbox can open what belongs to another process: {', '.join(opened)}.")
    if result.error is not None or result.output != _OUTPUT:
        raise InternalError("The sandbox answered one line of code with an error or with another output.")
    return True
