"""Keep a deployed sandbox active: Lambda makes a function in a VPC inactive after two weeks without a call."""

from typing import Final

from spass.core.code_calls import Sandbox, refuse_requests
from spass.core.effects import Cell
from spass.core.errors import InternalError

_OWNER_ID: Final = "sweep"  # neither a user has it, whose ids are hashes, nor code of a tenant runs here
_CELL: Final = Cell("print(6 * 7)")
_OUTPUT: Final = "42\n"


async def run_daily_cell(sandbox: Sandbox) -> bool:
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
    if result.error is not None or result.output != _OUTPUT:
        raise InternalError("The sandbox answered one line of code with an error or with another output.")
    return True
