"""Print the events of a stream."""

import json
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, Final

from spass.cli.hidden_text import mark_hidden
from spass.cli.terminal import is_terminal, note, note_lines, write

_MAX_CHARACTERS: Final = 300  # of a tool's arguments or result
_MAX_DIFF_CHARACTERS: Final = 4000  # of the diff of one file
_MAX_CODE_CHARACTERS: Final = 4000  # of the code of a call, or of what it printed
_CODE: Final = frozenset({"code"})
_CELL: Final = frozenset({"output", "error", "truncated"})


class StreamPrinter:
    """Print the answer to standard output, and tool calls, diffs, approvals and status to standard error.

    Only the tokens of the last step are the answer, and only the end of the stream tells which step that was. A terminal shows
    all tokens as they arrive, with each step on a line of its own; a pipe gets the answer at the end.
    """

    def __init__(self) -> None:
        self._is_terminal = is_terminal(sys.stdout)
        self._step = 0
        self._pieces: list[str] = []
        self.done: dict[str, Any] = {}

    def print_all(self, events: Iterable[dict[str, Any]]) -> None:
        """Print ``events`` and, at their end, the answer."""
        try:
            for event in events:
                self._print(event)
        except BaseException:
            self._end_line()
            raise
        if self._is_terminal:
            self._end_line()
        else:
            write("".join(self._pieces) + "\n")

    def _print(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "token":
                self._print_token(str(event.get("content", "")), event.get("step", self._step))
            case "status_update":
                self._print_status(event)
            case "tool_call":
                self._end_line()
                note_result(_name(event), event.get("result"), event.get("duration_ms"))
                self._print_diffs(event.get("rich"))
            case "approval":
                self._print_approval(event.get("approval"))
            case "done":
                self.done = event
                if event.get("finish_reason") not in (None, "stop"):
                    self._note(f"[the answer ended early: {event['finish_reason']}]")
            case _:  # usage, and future types
                pass

    def _print_token(self, content: str, step: int) -> None:
        if step != self._step:
            self._end_line()
            self._step = step
            self._pieces.clear()
        self._pieces.append(content)
        if self._is_terminal:
            write(content)

    def _print_status(self, event: dict[str, Any]) -> None:
        call = event.get("tool_call")
        if isinstance(call, dict):
            self._end_line()
            _note_call(_name(call), call.get("args"))
        elif event.get("progress") is not None:
            self._note(f"[…] {_compact(event['progress'])}")
        elif event.get("detail") and event.get("status") == "executing":
            self._note(str(event["detail"]))

    def _print_diffs(self, rich: object) -> None:
        for block in rich if isinstance(rich, list) else ():
            diff = block.get("unified") if isinstance(block, dict) and block.get("kind") == "diff" else None
            if isinstance(diff, str) and diff:
                note_lines(_shorten(mark_hidden(diff), _MAX_DIFF_CHARACTERS))

    def _print_approval(self, approval: object) -> None:
        if isinstance(approval, dict):
            path, preview = f"/a1/approvals/{approval.get('id')}", approval.get("preview")
            is_cut = isinstance(preview, dict) and preview.get("complete") is False
            unread = f"; the preview is cut, so read GET {path}/changes to its end first" if is_cut else ""
            self._note(f"[{approval.get('id')} waits: approve or deny it with POST {path}{unread}]")

    def _note(self, text: str) -> None:
        if self._is_terminal:
            self._end_line()
        note(text)

    def _end_line(self) -> None:
        if self._is_terminal and self._pieces and not self._pieces[-1].endswith("\n"):
            write("\n")
            self._pieces.append("\n")


def note_result(tool: str, result: object, duration_ms: object) -> None:
    """Write about a tool call that is over. ``result`` is its value, or the JSON of it. What code printed keeps its lines.

    ``duration_ms`` is None if it is unknown.
    """
    cell, duration = _members(result, _CELL), "" if duration_ms is None else f" ({duration_ms} ms)"
    if cell is None:
        note(f"[{tool}] = {_compact(result)}{duration}")
        return
    missing = f"[{cell['truncated']} more characters]" if cell["truncated"] else ""
    printed = "\n".join(str(part).rstrip("\n") for part in (cell["output"], missing, cell["error"]) if part)
    note(f"[{tool}] {'=' if printed else 'printed nothing'}{duration}")
    _note_indented(printed)


def _note_call(tool: str, arguments: object) -> None:
    """Write about a tool call that begins. Code keeps its lines."""
    code = _members(arguments, _CODE)
    if code is None:
        note(f"[{tool}] {_compact(arguments)}")
    else:
        note(f"[{tool}]")
        _note_indented(str(code["code"]))


def _members(value: object, names: frozenset[str]) -> Mapping[str, Any] | None:
    """Return the object that ``value`` is or is the JSON of, if it has exactly these members."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) and value.keys() == names else None


def _note_indented(text: str) -> None:
    if text:
        note_lines(textwrap.indent(_shorten(text, _MAX_CODE_CHARACTERS), "    "))


def _name(call: Mapping[str, Any]) -> str:
    """Return the name of the tool, after that of the delegate that calls it."""
    return f"{call['agent']}: {call.get('tool')}" if call.get("agent") else str(call.get("tool"))


def _compact(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _shorten(text, _MAX_CHARACTERS)


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + " …"
