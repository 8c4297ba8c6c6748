"""Print the events of a stream."""

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, Final

from spass.cli.terminal import is_terminal, note, note_lines, write

_MAX_CHARACTERS: Final = 300  # of a tool's arguments or result
_MAX_DIFF_CHARACTERS: Final = 4000  # of the diff of one file, in a change that is made
_MAX_CODE_CHARACTERS: Final = 4000  # of the code of a call, or of what it printed
_CODE: Final = frozenset({"code"})
_CELL: Final = frozenset({"output", "error", "truncated"})
# Controls, the ends of lines other than a line feed, characters without a shape, and those that change the direction of text.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_BLANKS: Final = re.compile(r"[^\S\n]{100,}|\t{12,}")


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
                if not _waits(event.get("result")):  # its approval follows, with the same blocks
                    _note_diffs(_diffs(event.get("rich")), _MAX_DIFF_CHARACTERS)
            case "approval" if isinstance(event.get("approval"), dict):
                self._end_line()
                _note_approval(event["approval"])
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


def _note_approval(approval: Mapping[str, Any]) -> None:
    """Write all that ``approval`` shows of the call that waits, and how it is decided. Nothing of it is cut."""
    path, preview, arguments = f"/a1/approvals/{approval.get('id')}", approval.get("preview"), approval.get("arguments")
    diffs = _diffs(approval.get("rich"))
    _note_diffs(diffs, None)
    unread = ""
    is_cut = isinstance(preview, Mapping) and preview.get("complete") is False
    if is_cut or any(diff.get("truncated") for diff in diffs):
        unread = f"; the preview is cut, so read GET {path}/changes to its end first"
    elif not diffs:
        shown = {name: value for name, value in (("preview", preview), ("arguments", arguments)) if value is not None}
        note_lines(_mark_hidden(json.dumps(shown, ensure_ascii=False, indent=2)))
        unread = "" if len(shown) == 2 else f"; it is shown in part, so read GET {path} first"
    if diffs and isinstance(preview, Mapping) and (why := preview.get("why")):
        note(_mark_hidden(f"[{why}]"))
    note(f"[{approval.get('id')} waits: approve or deny it, as the same user, with POST {path}{unread}]")


def _mark_hidden(text: str) -> str:
    """Return ``text`` with hidden characters written as e.g. ``⟨U+202E⟩``, and long runs of blanks as e.g. ``⟨400 blanks⟩``,
    as the page does (``ui/visible.js``)."""
    marked = _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)
    return _BLANKS.sub(lambda match: f"⟨{len(match[0])} blanks⟩", marked)


def _diffs(rich: object) -> list[Mapping[str, Any]]:
    return [one for one in rich if isinstance(one, Mapping) and one.get("kind") == "diff"] if isinstance(rich, list) else []


def _note_diffs(diffs: Iterable[Mapping[str, Any]], limit: int | None) -> None:
    """Write a line about each file that changes, also if its diff is empty, and at most ``limit`` characters of each diff."""
    for diff in diffs:
        note(_mark_hidden(f"{diff.get('path')} {diff.get('status')} +{diff.get('added')} -{diff.get('removed')}"))
        if unified := _mark_hidden(str(diff.get("unified") or "")):
            note_lines(unified if limit is None else _shorten(unified, limit))


def _waits(result: object) -> bool:
    """Return whether ``result``, or the JSON of it, says that the call waits for a person."""
    try:
        value = json.loads(result) if isinstance(result, str) else result
    except ValueError:
        return False
    return isinstance(value, Mapping) and value.get("approval_required") is True


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
