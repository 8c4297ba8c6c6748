"""Edit a text as an instruction plainly asks: a docstring, a comment, a line that is added, replaced or removed."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from local.standin.named_paths import files_in, functions_in, quotes_in
from local.standin.words import fold

_FENCED: Final = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_LINE_NUMBER: Final = re.compile(r"\b(?:line|zeile) (\d{1,7})\b")
_TO: Final = r"(?:with|to|by|into|durch|in|zu)"
_REPLACE: Final = re.compile(rf"\b(?:replace|change|rename|set|ersetze|andere|benenne)\b.*\b{_TO}\b", re.DOTALL)
_RENAME: Final = re.compile(r"\b(rename|benenne)\b")
_BARE_PAIR: Final = re.compile(
    rf"\b(?:replace|change|rename|ersetze|ändere|benenne)\s+(?:the\s+(?:word|function|variable|name)\s+)?(\S+?)(?:\(\))?\s+{_TO}\s+"
    r"(\S+?)(?:\(\))?(?=[\s.,;!]*(?:$|\s(?:in|everywhere|throughout|um)\b))",
    re.IGNORECASE,
)
_REMOVE: Final = re.compile(r"\b(remove|delete|drop|entferne|losche|streiche)\b")
_ADD: Final = re.compile(r"\b(add|append|insert|write|put|include|create|make|erganze|fuge|schreibe?|erstelle|lege)\b")
_COMMENT: Final = re.compile(r"\b(comments?|kommentare?|todos?)\b")
_ADDED_TEXT: Final = re.compile(
    r"(?:\b(?:saying|that says|which says|containing|with the (?:text|line|content)|mit dem (?:text|inhalt)|the line)\b|:)"
    r"[:\s]*(\S.*?)\s*$",
    re.IGNORECASE | re.DOTALL,
)
_SECTION: Final = re.compile(
    r"\b(?:section|chapter|abschnitt) (?:about|on|for|named|called|über|zu)\s+(.+?)(?= (?:to|in|at)\b|[.!]?$)|"
    r"\ban? (?:new |short )?(?!new |short )([\w-]+) section\b(?! (?:about|on|for|named|called)\b)"
)
_TOP: Final = re.compile(r"\b(top|beginning|start|anfang|beginn)\b")
_AFTER: Final = re.compile(r"\b(after|below|under|nach|hinter)\s*$")
_BEFORE: Final = re.compile(r"\b(before|above|vor)\s*$")
_DOCSTRING: Final = re.compile(r"\s*[rbu]?(\"\"\"|''\')")
_HEADER_END: Final = re.compile(r":\s*(?:#.*)?$")
_COMMENT_MARKS: Final = {
    "js": "//", "ts": "//", "tsx": "//", "jsx": "//", "java": "//", "go": "//", "rs": "//", "c": "//", "cpp": "//", "h": "//",
    "sql": "--", "lua": "--",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Splice:
    """The lines ``start`` to ``end`` (0-based, exclusive) become ``lines``, each of which ends with a line break."""

    start: int
    end: int
    lines: tuple[str, ...]


def split_lines(text: str) -> list[str]:
    """Split at line feeds only. Each line keeps its own."""
    return _LINE.findall(text)


def apply(text: str, splices: Sequence[Splice]) -> str:
    lines = split_lines(text)
    for splice in sorted(splices, key=lambda splice: -splice.start):
        lines[splice.start : splice.end] = splice.lines
    return "".join(lines)


def plan_edit(instruction: str, path: str, text: str) -> list[Splice]:
    """Return the changes that ``instruction`` asks for in the file ``path``, in order, or none."""
    file = _File(path, split_lines(text), instruction, fold(instruction))
    for is_asked, plan in _PLANS:
        if is_asked(file.folded):
            return sorted(plan(file), key=lambda splice: splice.start)
    return []


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    lines: list[str]
    instruction: str
    folded: str

    @property
    def extension(self) -> str:
        return self.path.rpartition(".")[2].lower()

    @property
    def line_break(self) -> str:
        return "\r\n" if self.lines and self.lines[0].endswith("\r\n") else "\n"

    @property
    def line_number(self) -> int | None:
        """Return the 0-based number of the line that the instruction names, at most the number of lines."""
        named = _LINE_NUMBER.search(self.folded)
        return min(max(int(named[1]) - 1, 0), len(self.lines)) if named else None

    def insert(self, at: int, text: str, indent: str = "") -> list[Splice]:
        """Insert ``text`` before the line ``at``. If the line above has no line break, it gets one."""
        added = tuple(f"{indent}{line}".rstrip() + self.line_break for line in text.splitlines() or [""])
        if at == len(self.lines) and self.lines and not self.lines[-1].endswith("\n"):
            return [Splice(at - 1, at, (self.lines[-1] + self.line_break, *added))]
        return [Splice(at, at, added)]

    def comment(self, text: str) -> str:
        if self.extension in {"md", "html", "xml"}:
            return f"<!-- {text} -->"
        return f"{_COMMENT_MARKS.get(self.extension, '#')} {text}"

    def definition_of(self, name: str) -> int | None:
        """Return the number of the line that defines ``name``, or None."""
        pattern = re.compile(
            rf"\s*(?:(?:async|export|pub|static|public)\s+)*(?:def|class|function|func|fn)\s+{re.escape(name)}\b"
        )
        return next((at for at, line in enumerate(self.lines) if pattern.match(line)), None)

    def header_end(self, start: int) -> int | None:
        """Return the number of the line with the colon that ends the definition in line ``start``, or None if its body follows on
        that line."""
        return next((at for at in range(start, len(self.lines)) if _HEADER_END.search(self.lines[at])), None)


def _docstrings(file: _File) -> list[Splice]:
    change = _remove_docstring if _REMOVE.search(file.folded) else _docstring
    wanted = functions_in(file.instruction) or re.findall(
        r"\b(?:to|zu|function|class|method|funktion|klasse) (?:the )?(?:function |class |method )?([a-z_]\w*)\b", file.instruction
    )
    if re.search(r"\b(all|every|each|allen|jeder)\b", file.folded):
        wanted = re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", "".join(file.lines), re.MULTILINE)
    if not wanted and re.search(r"\b(module|modul|file|datei|top)\b", file.folded):
        return file.insert(0, f'"""{_sentence_for(file, file.path.rpartition("/")[2].partition(".")[0])}"""')
    return [splice for name in dict.fromkeys(wanted) for splice in change(file, name)]


def _docstring(file: _File, name: str) -> list[Splice]:
    start = file.definition_of(name)
    if start is None:
        return []
    indent = re.match(r"[ \t]*", file.lines[start])
    outer = indent.group() if indent else ""
    sentence = _sentence_for(file, name)
    if file.extension not in {"py", "pyi"}:
        return file.insert(start, f"/** {sentence} */", outer)
    end = file.header_end(start)
    if end is None:  # the body stands on the line of the definition
        header, colon, body = file.lines[start].rstrip().rpartition(": ")
        broken = (f"{header}:", f'{outer}    """{sentence}"""', f"{outer}    {body}")
        return [Splice(start, start + 1, tuple(line + file.line_break for line in broken))] if colon else []
    body_start = next((line for line in file.lines[end + 1 :] if line.strip()), "")
    if _DOCSTRING.match(body_start):
        return []
    inner = re.match(r"[ \t]*", body_start)
    return file.insert(
        end + 1, f'"""{sentence}"""', inner.group() if inner and len(inner.group()) > len(outer) else f"{outer}    "
    )


def _remove_docstring(file: _File, name: str) -> list[Splice]:
    start = file.definition_of(name)
    end = None if start is None else file.header_end(start)
    opening = None if end is None or end + 1 >= len(file.lines) else _DOCSTRING.match(file.lines[end + 1])
    if end is None or opening is None:
        return []
    rest = "".join(file.lines[end + 1 :])
    close = rest.find(opening[1], opening.end())
    return [Splice(end + 1, end + 2 + rest.count("\n", 0, close), ())] if close >= 0 else []


def _sentence_for(file: _File, name: str) -> str:
    """Return the text of a docstring: the one that the instruction quotes, otherwise the name in words."""
    quoted = [text for text in quotes_in(file.instruction) if " " in text]
    words = " ".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)).lower()
    return quoted[0] if quoted else "Run the program." if name == "main" else f"{(words or name).capitalize()}."


def _comments(file: _File) -> list[Splice]:
    if _REMOVE.search(file.folded):
        start = re.compile(
            rf"\s*{re.escape(file.comment('').split()[0])}" + (r".*\btodo\b" if "todo" in file.folded else ""), re.IGNORECASE
        )
        return [Splice(at, at + 1, ()) for at, line in enumerate(file.lines) if start.match(line)]
    text = (_added_text(file) or "").lstrip("#/ ") or ("TODO: check this." if "todo" in file.folded else "This was checked.")
    if "todo" in file.folded and "todo" not in text.lower():
        text = f"TODO: {text}"
    at = file.line_number
    for name in functions_in(file.instruction):
        at = file.definition_of(name) if at is None else at
        if at is None:
            return []
    indent = re.match(r"[ \t]*", file.lines[at]) if at is not None and at < len(file.lines) else None
    return file.insert(at or 0, file.comment(text), indent.group() if indent else "")


def _replacements(file: _File) -> list[Splice]:
    quoted = [text for text in quotes_in(file.instruction) if text != file.path]
    if file.line_number is not None and quoted:
        at = file.line_number
        return [Splice(at, at + 1, (quoted[-1] + file.line_break,))] if at < len(file.lines) else []
    bare = _BARE_PAIR.search(file.instruction)
    if len(quoted) >= 2:
        old, new = quoted[:2]
    elif bare:
        old, new = (word.strip("`\"'") for word in bare.groups())
    else:
        return []
    pattern = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)" if _RENAME.search(file.folded) else re.escape(old))
    changed = ((at, line, pattern.sub(lambda _: new, line)) for at, line in enumerate(file.lines))
    return [Splice(at, at + 1, (after,)) for at, before, after in changed if after != before]


def _removals(file: _File) -> list[Splice]:
    if file.line_number is not None:
        return [Splice(file.line_number, file.line_number + 1, ())] if file.line_number < len(file.lines) else []
    quoted = [text for text in quotes_in(file.instruction) if text != file.path]
    if quoted:
        return [Splice(at, at + 1, ()) for at, line in enumerate(file.lines) if quoted[0] in line]
    starts = (file.definition_of(name) for name in functions_in(file.instruction))
    return [Splice(start, _block_end(file.lines, start), ()) for start in starts if start is not None]


def _block_end(lines: Sequence[str], start: int) -> int:
    """Return the end of the indented block that begins at ``start``, with the blank lines after it."""
    indent = len(lines[start]) - len(lines[start].lstrip())
    for at in range(start + 1, len(lines)):
        if lines[at].strip() and len(lines[at]) - len(lines[at].lstrip()) <= indent and not lines[at].lstrip().startswith(")"):
            return at
    return len(lines)


def _additions(file: _File) -> list[Splice]:
    if section := _SECTION.search(file.instruction):
        title = (section[1] or section[2]).strip("`\"'“” ")
        text = f"## {title[:1].upper()}{title[1:]}\n\nTo be written."
        return file.insert(len(file.lines), f"\n{text}" if file.lines else text)
    added = _added_text(file)
    if added is None:
        return file.insert(0, _first_text(file)) if not file.lines else []
    at = len(file.lines) if file.line_number is None else file.line_number
    if file.line_number is not None and re.search(r"\b(after|nach) (line|zeile)\b", file.folded):
        at = min(at + 1, len(file.lines))
    elif file.line_number is None and _TOP.search(fold(_without_quotes(file.instruction))):
        at = 0
    for anchor, offset in _anchors(file):
        at = next((number + offset for number, line in enumerate(file.lines) if anchor in line), at)
    return file.insert(at, added)


def _anchors(file: _File) -> list[tuple[str, int]]:
    """Return the quoted texts that say where to add: each with 1 for after its line and 0 for before it."""
    anchors = []
    for quoted in quotes_in(file.instruction):
        lead = fold(file.instruction[: max(file.instruction.find(quoted) - 1, 0)])
        if _AFTER.search(lead):
            anchors.append((quoted, 1))
        elif _BEFORE.search(lead):
            anchors.append((quoted, 0))
    return anchors


def _added_text(file: _File) -> str | None:
    """Return the text to add: a code block, a quoted text that is neither a place nor a path, or what follows a colon."""
    if block := _FENCED.search(file.instruction):
        return block[1].rstrip("\n")
    places = {anchor for anchor, _ in _anchors(file)}
    for quoted in quotes_in(file.instruction):
        if quoted not in places and files_in(quoted) != [quoted] and not re.fullmatch(r"\w+\(\)", quoted):
            return quoted
    said = _ADDED_TEXT.search(_without_quotes(file.instruction))
    if said is None:
        return None
    text = re.sub(rf"\s+(?:to|in|at the (?:end|top) of|into|an)\s+{re.escape(file.path)}[.!]?$", "", said[1])
    return text.rstrip() or None


def _without_quotes(text: str) -> str:
    for quoted in quotes_in(text):
        text = text.replace(quoted, "")
    return text


def _first_text(file: _File) -> str:
    """Return the first text of a new file whose content the instruction does not give."""
    name = file.path.rpartition("/")[2].partition(".")[0].replace("_", " ").replace("-", " ")
    title = f"{name[:1].upper()}{name[1:]}"
    if file.extension in {"py", "pyi"}:
        return f'"""{title}."""'
    return f"# {title}" if file.extension == "md" else file.comment(title)


_PLANS: Final[Sequence[tuple[Callable[[str], object], Callable[[_File], list[Splice]]]]] = (
    (re.compile(r"\b(docstrings?|doc string|dokumentationszeile)\b").search, _docstrings),
    (lambda folded: _COMMENT.search(folded) and (_ADD.search(folded) or _REMOVE.search(folded)), _comments),
    (_REPLACE.search, _replacements),
    (_REMOVE.search, _removals),
    (_ADD.search, _additions),
)
