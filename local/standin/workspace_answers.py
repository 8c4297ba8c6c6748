"""Say in a few words what a workspace's tool returned: files, a text, matches, a diff, or that a call waits for an approval."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from local.standin.conversation import ToolResult

_MAX_TEXT: Final = 4000  # characters of a file or a diff that an answer repeats
_MAX_ROWS: Final = 50  # files or matches that an answer names


def describe(outcome: ToolResult, *, german: bool) -> str | None:
    """Return a sentence about the result, with what it shows. Return None for the result of another tool."""
    result = outcome.result
    if not isinstance(result, Mapping):
        return None
    if result.get("approval_required") is True:
        return _waiting(result, german=german)
    match outcome.name:
        case "list_directory":
            return _listing(result, german=german)
        case "read_file":
            return f"{result.get('path')}:\n\n{_fenced(str(result.get('text', '')))}"
        case "search_files":
            return _matches(result, german=german)
        case "aider_edit":
            return _edit(result, is_command=str(outcome.arguments.get("message", "")).startswith("/"), german=german)
        case "delegate":
            return _delegated(result, german=german)
        case _:
            return None


def _waiting(result: Mapping[str, Any], *, german: bool) -> str:
    approval = result.get("approval_id")
    if german:
        return f"Das wartet auf die Zustimmung eines Menschen ({approval}); bis dahin ändert sich nichts."
    return f"This waits for a person's approval ({approval}); nothing changes before that."


def _listing(result: Mapping[str, Any], *, german: bool) -> str:
    folder = f"{result.get('path')}/" if result.get("path") else ("Der Arbeitsbereich" if german else "The workspace")
    rows = [f"- {row.get('path')}{'/' if row.get('type') == 'directory' else ''}" for row in _rows(result, "entries")]
    if not rows:
        return f"{folder} {'ist leer' if german else 'is empty'}."
    return "\n".join([f"{folder} {'enthält' if german else 'holds'}:", *_first(rows)])


def _matches(result: Mapping[str, Any], *, german: bool) -> str:
    rows = [
        f"- {row.get('path')}:{row.get('line')}: {str(row.get('text', '')).strip()[:200]}" for row in _rows(result, "matches")
    ]
    if not rows:
        return "Keine Datei enthält das." if german else "No file contains that."
    return "\n".join(["Gefunden:" if german else "Found:", *_first(rows)])


def _edit(result: Mapping[str, Any], *, is_command: bool, german: bool) -> str:
    files = _rows(result, "files")
    version = result.get("version")
    diffs = "".join(str(file.get("unified", "")) for file in files)
    if version is None and not files:
        said = str(result.get("answer") or "").strip()
        if is_command and said:
            return said
        return f"{'Nichts wurde geändert.' if german else 'Nothing was changed.'} {said}".strip()
    counts = ", ".join(f"{file.get('path')} (+{file.get('added')} −{file.get('removed')})" for file in files)
    if version is None:
        lead = f"{'Der Unterschied' if german else 'The difference'}: {counts}."
    else:
        lead = f"{'Geändert' if german else 'Changed'}: {counts}. {'Das ist Version' if german else 'This is version'} {version}."
    return f"{lead}\n\n{_fenced(diffs, 'diff')}" if diffs else lead


def _delegated(result: Mapping[str, Any], *, german: bool) -> str:
    waiting = _rows(result, "approvals")
    ids = ", ".join(str(approval.get("approval_id") or approval.get("id")) for approval in waiting)
    answer = str(result.get("answer") or "").strip()
    note = f" ({'wartet auf Zustimmung' if german else 'waits for approval'}: {ids})" if ids else ""
    return f"{result.get('agent')}{note}: {answer}"


def _rows(result: Mapping[str, Any], field: str) -> Sequence[Mapping[str, Any]]:
    rows = result.get(field)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _first(rows: Sequence[str]) -> list[str]:
    return [*rows[:_MAX_ROWS], *(["- …"] if len(rows) > _MAX_ROWS else [])]


def _fenced(text: str, language: str = "") -> str:
    fence = "````" if "```" in text else "```"
    shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}\n…"
    return f"{fence}{language}\n{shown.rstrip()}\n{fence}"
