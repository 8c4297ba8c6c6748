"""Choose the calls of the workspace's tools that a question plainly asks for: list, read, search, edit, and delegate."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from local.standin.conversation import Conversation, ToolResult, text_of
from local.standin.named_paths import files_in, functions_in, is_file_name, paths_in, quotes_in, without_quotes
from local.standin.words import fold

NAMES: Final = frozenset({"read_file", "list_directory", "search_files", "aider_edit", "delegate"})
KNOWLEDGE: Final = re.compile(r"\b(index|indices|knowledge|wissen\w*)\b")
"""Words of a question about a knowledge index, not about files."""

_EDIT: Final = re.compile(
    r"(?:^|[.!?:;\n]|, then |and then )[^\w/]*(?:(?:please|bitte|now|jetzt|also|can you|could you|kannst du)[ ,]+)*"
    r"(?:add|append|insert|write|create|make|put|include|change|replace|rename|remove|delete|drop|move|fix|update|refactor|edit|document|"
    r"undo|erganze|fuge|schreibe?|erstelle|lege|andere|ersetze|benenne|entferne|losche|verschiebe|dokumentiere|mache)\b(?=\s)"
)
_UNDO: Final = re.compile(r"\b(undo|take back|ruckgangig|nimm .* zuruck)\b")
_WHAT_CHANGED: Final = re.compile(
    r"\b(what (has |was )?changed|show (me )?(the |your )?(last )?(diff|changes?)|was hat sich geandert|zeige? .*diff)\b"
)
_HISTORY: Final = re.compile(r"\b(git log|(?:show|list|what|which|zeige?|welche)\b.*\b(?:history|versions|versionen|verlauf))\b")
_TO_VERSION: Final = re.compile(
    r"\b(?:bring|restore|revert|take|reset|stelle?|hole?)\b.*\b(?:to|from|auf|aus) version (\d{1,9})\b"
)
_DELETE_FILE: Final = re.compile(
    r"\b(?:delete|remove|losche|entferne)\b (?:the |a |die |das )?(?:(?:whole |ganze )?(?:file|datei) )?[`\"']?([\w./+@-]+)"
)
_MOVE_FILE: Final = re.compile(r"\b(?:move|rename|verschiebe|benenne)\b")
_LIST: Final = re.compile(r"\b(files?|folders?|director(y|ies)|dateien|datei|ordner|verzeichnis(se)?|tree|baum)\b")
_ALL: Final = re.compile(r"\b(all|every|everything|whole|tree|recursive(ly)?|alle|alles|ganze[rsn]?)\b")
_ABOUT: Final = re.compile(r"\b(?:this|the|your|das|dieses) (?:project|repo|repository|program|code ?base|projekt|programm)\b")
_SYMBOL_SOUGHT: Final = re.compile(
    r"\bwhere (?:is|are) (?:the (?:function|class|variable|name|word) )?`?([a-z_]\w*)`? (?:used|called|defined|imported|set)\b",
    re.IGNORECASE,
)
_INSTEAD: Final = re.compile(r"Did you mean '([^']+)'")
_SEARCH: Final = re.compile(r"\b(where|search|grep|find|which files?|wo|suche?|finde?)\b")
_LINES: Final = re.compile(r"\b(?:lines?|zeilen?) (\d{1,6})(?:\s*(?:-|–|to|bis|and|und)\s*(\d{1,6}))?")
_DEEP: Final = 8  # levels that "everything" lists
_JOB_CARD_TASK: Final = re.compile(
    r"\A# Job card: .*?^## Task\n\n(.*?)(?=^## (?:Files|Acceptance)$|\Z)", re.DOTALL | re.MULTILINE
)

_LANE: Final = re.compile(
    r"\bdir-(code|models|data|devsecops|docs)\b|"
    r"\b(code|models?|data|devsecops|dev ?ops|security|docs?|documentation)[ -](?:director|lane|agent|team)\b",
    re.IGNORECASE,
)
_LANES: Final = {
    "model": "models",
    "devops": "devsecops",
    "dev ops": "devsecops",
    "security": "devsecops",
    "doc": "docs",
    "documentation": "docs",
}
_LEAD_IN: Final = re.compile(
    r"(?:[\s,;.]*\b(?:and|then|also|please|ask|have|let|tell|get|delegate(?: this)? to|the)\b)+[\s,;]*$", re.IGNORECASE
)
_TASK_START: Final = re.compile(r"^[\s,:]*(?:(?:to|that it should|should|must)\b[\s:]*)?")
_LANE_OF_PATH: Final = (
    (re.compile(r"^\.github/|^infra/|(^|/)Dockerfile|\.tf$"), "devsecops"),
    (re.compile(r"^docs/|\.md$"), "docs"),
    (re.compile(r"^(models|training|eval|configs)/"), "models"),
    (re.compile(r"^(data|schemas|pipelines)/"), "data"),
)


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


def workspace_calls(tools: Collection[str], conversation: Conversation) -> list[Call]:
    """Return the next calls. Return none if the question asks for no tool of ``tools``, or if the results answer it."""
    offered = NAMES & {*tools}
    if not offered:
        return []
    if conversation.results:
        return _after_results(offered, conversation)
    for choose in (_delegates, _edit, _read, _search, _list):
        if calls := [call for call in choose(offered, conversation) if call.name in offered]:
            return calls
    return []


def _delegates(offered: Collection[str], conversation: Conversation) -> Iterator[Call]:
    """Yield a call for each lane that the question names. Without ``aider_edit``, an edit goes to the lane of its files."""
    if "delegate" not in offered:
        return
    question = conversation.question_text
    mentions = [*_LANE.finditer(question)]
    for at, mention in enumerate(mentions):
        end = mentions[at + 1].start() if at + 1 < len(mentions) else len(question)
        lane = (mention[1] or mention[2]).lower()
        task = _LEAD_IN.sub("", _TASK_START.sub("", question[mention.end() : end])).strip(" ,;")
        yield Call("delegate", {"agent": f"dir-{_LANES.get(lane, lane)}", "task": task or question})
    if not mentions and "aider_edit" not in offered and _EDIT.search(fold(question)):
        path = next(iter(paths_in(question)), "")
        lane = next((lane for pattern, lane in _LANE_OF_PATH if pattern.search(path)), "code")
        yield Call("delegate", {"agent": f"dir-{lane}", "task": question})


def _edit(offered: Collection[str], conversation: Conversation) -> Iterator[Call]:
    question, folded = conversation.question_text, fold(conversation.question_text)
    if "aider_edit" not in offered:
        return
    files = files_in(_without_quoted_texts(question)) or files_in(question)
    if command := _version_command(question, files):
        yield Call("aider_edit", {"message": command, "files": files or ["README.md"]})
    elif _UNDO.search(folded) or _WHAT_CHANGED.search(folded):
        files = files or _earlier_files(conversation) or ["README.md"]
        yield Call("aider_edit", {"message": "/undo" if _UNDO.search(folded) else "/diff", "files": files[:1]})
    elif _EDIT.search(folded):
        if files and (command := _git_command(question, files)):
            yield Call("aider_edit", {"message": command, "files": files})
        elif files := files or _files_with(conversation):
            yield Call("aider_edit", {"message": _task(conversation), "files": files})
        elif "search_files" in offered and (functions := functions_in(question)):
            yield Call("search_files", {"text": f"def {functions[0]}("})
        elif not KNOWLEDGE.search(folded):
            yield Call("list_directory", {"depth": _DEEP})


def _version_command(question: str, files: Sequence[str]) -> str | None:
    """Return the command that the question is, or that lists versions or brings files back to one."""
    if re.match(r"/[a-z]+\b(?!/)", question):
        return question
    folded = fold(question)
    if files and (version := _TO_VERSION.search(folded)):
        return f"/git restore --source={version[1]} {' '.join(files)}"
    return f"/git log {' '.join(files)}".strip() if _HISTORY.search(folded) else None


def _git_command(question: str, files: Sequence[str]) -> str | None:
    """Return Aider's command that deletes or moves a whole file, if that is what the question asks for."""
    folded = fold(question)
    deleted = _DELETE_FILE.search(folded)
    if deleted and deleted[1].rstrip(".") == fold(files[0]):
        return f"/git rm {' '.join(files)}"
    if len(files) == 2 and _MOVE_FILE.search(folded):
        return f"/git mv {files[0]} {files[1]}"
    return None


def _read(offered: Collection[str], conversation: Conversation) -> Iterator[Call]:
    del offered
    question = conversation.question_text
    lines = _LINES.search(fold(question))
    part = {"start_line": int(lines[1]), "end_line": int(lines[2] or lines[1])} if lines else {}
    about = ["README.md"] if conversation.is_question and _ABOUT.search(fold(question)) else []
    for path in (files_in(question) or about)[:8]:
        yield Call("read_file", {"path": path, **part})


def _search(offered: Collection[str], conversation: Conversation) -> Iterator[Call]:
    del offered
    question = conversation.question_text
    sought = [*quotes_in(question), *(f"{name}(" for name in functions_in(question)), *_SYMBOL_SOUGHT.findall(question)]
    if sought and _SEARCH.search(fold(question)):
        folder = next((path for path in paths_in(question) if path.endswith("/")), None)
        yield Call("search_files", {"text": sought[0], **({"glob": folder} if folder else {})})


def _list(offered: Collection[str], conversation: Conversation) -> Iterator[Call]:
    del offered
    question = conversation.question_text
    folders = [path for path in paths_in(question) if path.endswith("/") or not is_file_name(path)]
    named = re.search(
        r"\b(?:folder|directory|ordner|verzeichnis) [`\"']?([\w.-]+)|[`\"']?\b([\w.-]+)[`\"']? (?:folder|directory)\b", question
    )
    if (
        not folders
        and named
        and not re.fullmatch(r"(?i)the|this|a|root|current|which|what|is|are|in|has|whole", named[1] or named[2])
    ):
        folders = [named[1] or named[2]]
    if folders or _LIST.search(fold(question)):
        depth = {"depth": _DEEP} if _ALL.search(fold(question)) else {}
        for folder in folders[:8] or [""]:
            yield Call("list_directory", {**({"path": folder.rstrip("/")} if folder.strip("/") else {}), **depth})


def _after_results(offered: Collection[str], conversation: Conversation) -> list[Call]:
    """Return the edit for which a search or a listing has now found the file, or the reading of the file that an error names."""
    if instead := _named_instead(conversation.results):
        return [Call("read_file", {"path": instead})]
    done = {result.name for result in conversation.results}
    if "aider_edit" not in offered or not done or done & {"aider_edit", "delegate", "read_file"}:
        return []
    if not _EDIT.search(fold(conversation.question_text)):
        return []
    function = next(iter(functions_in(conversation.question_text)), None)
    found = next((path for result in conversation.results for path in _found(result, function)), None)
    return [Call("aider_edit", {"message": _task(conversation), "files": [found]})] if found else []


def _named_instead(results: Sequence[ToolResult]) -> str | None:
    """Return the path that the error of a single ``read_file`` names instead of its own."""
    error = results[0].result.get("error") if len(results) == 1 and isinstance(results[0].result, Mapping) else None
    named = _INSTEAD.search(str(error.get("message"))) if isinstance(error, Mapping) and results[0].name == "read_file" else None
    return named[1] if named else None


def _found(result: ToolResult, function: str | None) -> Iterator[str]:
    """Yield the files of a search's or listing's result, the most likely one first."""
    field = "matches" if result.name == "search_files" else "entries"
    rows = result.result.get(field) if isinstance(result.result, Mapping) else None
    found = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    paths = [str(row.get("path")) for row in found if row.get("type", "file") == "file"]
    if result.name == "list_directory":
        if function is None:
            yield from paths[:1] if len(paths) == 1 else []
            return
        paths = [path for path in paths if path.rpartition("/")[2].partition(".")[0] == function]
    yield from sorted(paths, key=lambda path: (path.startswith("tests/"), path.rpartition("/")[2].partition(".")[0] != function))


def _files_with(conversation: Conversation) -> list[str]:
    """Return the file of the conversation so far that the question means: the last one, or the last read one that defines it."""
    functions = functions_in(conversation.question_text)
    if not functions:
        return _earlier_files(conversation)[:1]
    definition = re.compile(rf"\b(?:def|function|fn|func) +(?:{'|'.join(functions)})\b")
    for read in reversed(conversation.earlier_results):
        if read.name == "read_file" and isinstance(read.result, Mapping) and definition.search(str(read.result.get("text"))):
            return [str(read.result.get("path"))]
    return []


def _earlier_files(conversation: Conversation) -> list[str]:
    """Return the files that earlier messages and calls name, the last one first."""
    named: list[str] = []
    for message in conversation.earlier:
        if message.get("role") in {"user", "assistant"}:
            named += files_in(text_of(message).split("```")[0])
        for call in message.get("tool_calls") or () if isinstance(message.get("tool_calls"), list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            named += files_in(str(function.get("arguments", ""))) if isinstance(function, Mapping) else []
    return list(dict.fromkeys(reversed(named)))


def _task(conversation: Conversation) -> str:
    """Return the question, or the section of a job card that says what to do."""
    question = conversation.question.strip()
    card = _JOB_CARD_TASK.search(question)
    return card[1].strip() if card else question


def _without_quoted_texts(question: str) -> str:
    """Return the question without its code blocks and without the texts in quotation marks. Paths may be in backticks."""
    return without_quotes(re.sub(r"```.*?```", " ", question, flags=re.DOTALL))
