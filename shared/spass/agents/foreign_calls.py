"""The calls of a foreign agent's own tools, as they are recorded: after the run, because the runner reports them at its end."""

from collections.abc import Iterable, Iterator

from spass.core.effects import ToolOutcome
from spass.core.json import dump
from spass.core.messages import Json, Message, Role, ToolCall, replayable_name
from spass.tools.base import TOOL_FAILED, arguments_for_display


def foreign_outcomes(results: Iterable[Json]) -> Iterator[ToolOutcome]:
    """Yield the outcomes that ``results`` describe, whose calls have no ids. Leave out what describes none."""
    for result in results:
        match result:
            case {"tool_name": str(name), "arguments": str(arguments), "content": str(content), "success": bool(ok)} if name:
                call = ToolCall("", replayable_name(name), arguments)
                value: Json = {"output": content} if ok else {"error": {"code": TOOL_FAILED, "message": content}}
                message = Message(Role.TOOL, dump(value), tool_call_id="")
                yield ToolOutcome(call, arguments_for_display(arguments), value, message, 0, ok=ok)
