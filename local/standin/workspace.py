"""The tools of a workspace: choose the calls that a question plainly asks for, and say what they returned."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from local.standin.conversation import Conversation, ToolResult

NAMES: Final = frozenset({"read_file", "list_directory", "search_files", "aider_edit", "delegate"})

# A path with a slash, or a name with an extension or that is known without one. A URL and a decimal number are none.
_PATH: Final = re.compile(
    r"(?<![\w/.:@-])(\.?[\w@+-][\w@+.-]*/(?:[\w@+.-]+/)*[\w@+.-]*|\.?[\w@+-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,9}|Dockerfile|Makefile)"
    r"(?![\w/])"
)
_IS_FILE: Final = re.compile(r"(?:[^./]\.\w+|^\.\w+|Dockerfile|Makefile)$")
_QUOTED: Final = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"")
_FUNCTION: Final = re.compile(r"\b([A-Za-z_]\w*)\(\)")
_EDIT: Final = re.compile(r"^(?:please )?(?:add|append|create|write|replace)\b", re.IGNORECASE | re.MULTILINE)
_DELETE: Final = re.compile(r"^(?:please )?(?:delete|remove) (?:the file )?`?(\S+?)`?[.!]?$", re.IGNORECASE | re.MULTILINE)
_SEARCH: Final = re.compile(r"\b(?:where|search|find)\b", re.IGNORECASE)
_LIST: Final = re.compile(r"\b(?:files|folders|directory)\b", re.IGNORECASE)
_LANE: Final = re.compile(
    r"[\s,]*\b(?:and )?(?:ask )?(?:the )?(code|models|data|devsecops|docs) director\b(?: to)?", re.IGNORECASE
)
_MAX_TEXT: Final = 4000  # characters of a file or a diff that an answer repeats
_MAX_ROWS: Final = 50  # files or matches that an answer names


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


def choose_calls(offered: Collection[str], conversation: Conversation) -> list[Call]:
    """Return the next calls. Return none if the question asks for none of the ``offered`` tools, or if the results answer it."""
    if any(result.name == "aider_edit" for result in conversation.results):
        return []
    if conversation.results:
        found = [path for result in conversation.results for path in _matched_files(result)]
        calls = [Call("aider_edit", {"message": conversation.question, "files": found[:1]})] if found else []
    else:
        calls = list(_calls(conversation.question, offered))
    return [call for call in calls if call.name in offered]


def files_in(text: str) -> list[str]:
    """Return the files that ``text`` names, each once, in order. Those in quoted texts count only if there are no others."""
    paths = _paths_in(_QUOTED.sub(" ", text)) or _paths_in(text)
    return [path for path in paths if _IS_FILE.search(path)]


def functions_in(text: str) -> list[str]:
    """Return the functions that ``text`` names, such as ``main()``."""
    return list(dict.fromkeys(_FUNCTION.findall(text)))


def quotes_in(text: str) -> list[str]:
    """Return the texts between quotation marks or backticks, in order."""
    return ["".join(groups) for groups in _QUOTED.findall(text)]


def describe(outcome: ToolResult) -> str | None:
    """Return a sentence about the result of a workspace's tool, and what it shows. Return None for another tool."""
    result = outcome.result
    if not isinstance(result, Mapping):
        return None
    if result.get("approval_required") is True:
        return f"This waits for a person's approval ({result.get('approval_id')}); nothing changes before that."
    match outcome.name:
        case "list_directory":
            rows = [f"- {row.get('path')}{'/' if row.get('type') == 'directory' else ''}" for row in _rows(result, "entries")]
            return _listing(f"{result['path']}/ holds:" if result.get("path") else "The workspace holds:", rows)
        case "read_file":
            return f"{result.get('path')}:\n\n{_fenced(str(result.get('text', '')))}"
        case "search_files":
            rows = [f"- {row.get('path')}:{row.get('line')}: {str(row.get('text')).strip()}" for row in _rows(result, "matches")]
            return _listing("Found:", rows)
        case "aider_edit":
            return _describe_edit(result)
        case "delegate":
            return f"{result.get('agent')}: {result.get('answer')}"
        case _:
            return None


def _calls(question: str, offered: Collection[str]) -> Iterator[Call]:
    files = files_in(question)
    folders = [path for path in _paths_in(question) if path not in files]
    if "delegate" in offered and _LANE.search(question):
        _, *pieces = _LANE.split(question)
        for lane, task in zip(pieces[::2], pieces[1::2], strict=True):
            yield Call("delegate", {"agent": f"dir-{lane.lower()}", "task": task.strip(" ,;") or question})
    elif (deleted := _DELETE.search(question)) and deleted[1] in files:
        yield Call("aider_edit", {"message": f"/git rm {deleted[1]}", "files": [deleted[1]]})
    elif _EDIT.search(question) and files:
        yield Call("aider_edit", {"message": question, "files": files})
    elif _EDIT.search(question):
        yield from (Call("search_files", {"text": f"def {name}("}) for name in functions_in(question)[:1])
    elif files:
        yield from (Call("read_file", {"path": path}) for path in files[:8])
    elif (quoted := quotes_in(question)) and _SEARCH.search(question):
        yield Call("search_files", {"text": quoted[0]})
    elif folders or _LIST.search(question):
        yield Call("list_directory", {"path": folders[0].rstrip("/")} if folders else {})


def _paths_in(text: str) -> list[str]:
    return list(dict.fromkeys(path.rstrip(".") for path in _PATH.findall(text)))


def _matched_files(outcome: ToolResult) -> list[str]:
    """Return the files that a search for a function has found, those of tests last."""
    is_definition = str(outcome.arguments.get("text")).startswith("def ")
    matches = _rows(outcome.result, "matches") if is_definition and isinstance(outcome.result, Mapping) else []
    return sorted((str(row.get("path")) for row in matches), key=lambda path: path.startswith("tests/"))


def _describe_edit(result: Mapping[str, Any]) -> str:
    files = _rows(result, "files")
    if not files:
        return str(result.get("answer") or "Nothing was changed.").strip()
    counts = ", ".join(f"{file.get('path')} (+{file.get('added')} −{file.get('removed')})" for file in files)
    diffs = "".join(str(file.get("unified", "")) for file in files)
    return f"Changed: {counts}. This is version {result.get('version')}.\n\n{_fenced(diffs, 'diff')}"


def _rows(result: Mapping[str, Any], field: str) -> Sequence[Mapping[str, Any]]:
    rows = result.get(field)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _listing(heading: str, rows: Sequence[str]) -> str:
    return "\n".join([heading, *rows[:_MAX_ROWS], *(["- …"] if len(rows) > _MAX_ROWS else [])]) if rows else f"{heading} nothing."


def _fenced(text: str, language: str = "") -> str:
    fence = "````" if "```" in text else "```"
    shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}\n…"
    return f"{fence}{language}\n{shown.rstrip()}\n{fence}"
