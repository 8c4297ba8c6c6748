"""The results of tool calls, and of calls that failed: a failed call has the result ``{"error": {"code", "message"}}``."""

import asyncio
from typing import Final, cast

from spass.core.effects import ToolOutcome
from spass.core.errors import InternalError, SpassError
from spass.core.messages import Json, Message, Role, ToolCall
from spass.metering import audit
from spass.tools import arguments as tool_arguments
from spass.tools.arguments import InvalidArguments
from spass.tools.base import CallResult, ToolError
from spass.tools.results import truncate_result, truncate_rich

_CANCELLED: Final = ToolError(
    "The call was cancelled because the work that it belongs to has ended. A change that it had begun may have been made.",
    code=audit.CANCELLED,
)
_BROKEN: Final = ToolError("The tool failed because of an error in the gateway.", code=InternalError.code)


def error_result(error: ToolError | SpassError) -> CallResult:
    """Return ``error`` as a result that the model reads."""
    body: dict[str, Json] = {"code": error.code, "message": error.message}
    if isinstance(error, InvalidArguments) and error.errors:
        body["errors"] = [*error.errors]
    if isinstance(error, ToolError):
        return CallResult({"error": body}, waiting=error.waiting, versions=error.versions, code=error.code)
    return CallResult({"error": body}, code=error.code)


def outcome_of(call: ToolCall, result: CallResult, duration_ms: int = 0) -> ToolOutcome:
    """Return the outcome of ``call`` with its message for the model."""
    bounded, text = truncate_result(result.result) if result.text is None else (result.result, result.text)
    message = Message(Role.TOOL, text, tool_call_id=call.id)
    arguments = tool_arguments.arguments_for_display(call.arguments)
    return ToolOutcome(
        call,
        arguments,
        bounded,
        message,
        duration_ms,
        not result.failed,
        truncate_rich(result.rich),
        result.approval,
        result.waiting,
        result.versions,
    )


def outcome_of_failure(call: ToolCall, error: BaseException, duration_ms: int) -> ToolOutcome:
    """Return the outcome of a call that raised ``error``. The message of an unexpected exception stays in the gateway."""
    if isinstance(error, asyncio.CancelledError):
        readable: ToolError | SpassError = _CANCELLED
    else:
        readable = error if isinstance(error, (ToolError, SpassError)) else _BROKEN
    return outcome_of(call, error_result(readable), duration_ms)


def waiting_results(outcome: ToolOutcome) -> list[Json]:
    """Return the results that wait for a person: that of the call itself, or those of the calls within it. A failed call has none
    of them."""
    if outcome.approval is not None:
        return [outcome.result]
    return cast("dict[str, list[Json]]", outcome.result).get("approvals", []) if outcome.waiting else []
