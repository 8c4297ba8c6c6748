"""Answer Aider's prompt with an edit, in the format that the prompt asks for: search and replace blocks, or whole files.

The prompts and formats are those of Aider 0.86 (https://github.com/Aider-AI/aider, ``aider/coders``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from local.standin.conversation import Message, text_of
from local.standin.edits import Splice, apply, plan_edit, split_lines
from local.standin.named_paths import files_in
from local.standin.words import fold

_ROLE: Final = "Act as an expert software developer."
_BLOCKS: Final = "*SEARCH/REPLACE block*"
_LISTING: Final = "*file listing*"
_FILES: Final = "I have *added these files to the chat*"
_CONFIRMATION: Final = "Ok, any changes I propose will be to those files."
# Aider repeats its rules at the end of the user's message.
_REMINDER: Final = re.compile(
    r"\n\n(?:# \*SEARCH/REPLACE block\* Rules:|To suggest changes to a file you MUST return).*", re.DOTALL
)
_CREATE: Final = re.compile(r"\b(create|write|erstelle|schreibe?|lege)\b")
_OPENING: Final = re.compile(r"\n([^\n]+)\n(`{3,4}|<(?:source|code|pre|codeblock|sourcecode)>)\n")


@dataclass(frozen=True, slots=True)
class AiderPrompt:
    """A request of Aider: the instruction, the texts of the files by path, and the format of the answer."""

    format: Literal["diff", "whole"]
    instruction: str
    files: Mapping[str, str]
    fence: tuple[str, str]


def read_aider_prompt(messages: Sequence[Message]) -> AiderPrompt | None:
    """Return what Aider asks for, or None if it did not write ``messages``."""
    texts = [text_of(message) for message in messages]
    rules = next((text for text in texts if _ROLE in text), "")
    if _BLOCKS not in rules and _LISTING not in rules:
        return None
    files, fence = _read_files(next((text for text in reversed(texts) if text.startswith(_FILES)), ""))
    confirmed = max((at for at, text in enumerate(texts) if text.startswith(_CONFIRMATION)), default=-1)
    spoken = [text for message, text in zip(messages, texts, strict=True) if message.get("role") == "user"]
    # After an answer that Aider cannot read, its complaint follows: the instruction is the first message.
    asked = [
        text
        for message, text in zip(messages[confirmed + 1 :], texts[confirmed + 1 :], strict=True)
        if message.get("role") == "user"
    ]
    instruction = asked[0] if confirmed >= 0 and asked else spoken[-1] if spoken else ""
    return AiderPrompt("diff" if _BLOCKS in rules else "whole", _REMINDER.sub("", instruction).strip(), files, fence)


def answer_aider(prompt: AiderPrompt) -> str:
    """Return a sentence and the edits. Return only a sentence if the instruction does not say plainly what to change."""
    changes = dict(_changes(prompt))
    if not changes:
        return "I am the offline stand-in model and do not see what to change in these files."
    names = ", ".join(f"`{path}`" for path in changes)
    edits = (_edit(prompt, path, splices) for path, splices in changes.items())
    return "\n\n".join([f"I change {names} as you asked.", *edits])


def _read_files(text: str) -> tuple[dict[str, str], tuple[str, str]]:
    """Return the texts of the files that a message lists, and the fences around each. No line of a file begins with a fence."""
    opening = _OPENING.search(text)
    if opening is None:
        return {}, ("```", "```")
    fence = (opening[2], opening[2].replace("<", "</"))
    files: dict[str, str] = {}
    while opening is not None:
        start = opening.end()
        # The closing fence stands on the last line if that one has no line break.
        following = re.compile(rf"{re.escape(fence[1])}(?:\n?\Z|\n(?=\n[^\n]+\n{re.escape(fence[0])}\n))")
        end = following.search(text, start)
        if end is None:
            break
        files[opening[1]] = text[start : end.start()]
        opening = _OPENING.match(text, end.end())
    return files, fence


def _changes(prompt: AiderPrompt) -> Iterator[tuple[str, list[Splice]]]:
    """Yield the changes of each file that the instruction concerns: the named files, otherwise the first in which it can be done.

    A named file that Aider does not show is a new one. It comes first only if the instruction asks for a new file.
    """
    named = [_match_path(path, prompt.files) for path in files_in(prompt.instruction)]
    new = [path for path in named if path not in prompt.files]
    first = new if _CREATE.search(fold(prompt.instruction)) else []
    shown = [path for path in named if path in prompt.files] or [*first, *prompt.files]
    for path in dict.fromkeys([*shown, *new]):
        splices = plan_edit(prompt.instruction, path, prompt.files.get(path, ""))
        if splices:
            yield path, splices
            if path not in named or path not in prompt.files:
                return


def _match_path(path: str, files: Mapping[str, str]) -> str:
    """Return the path of the file whose name the instruction writes without its folder, otherwise ``path``."""
    return next((known for known in files if known == path or known.endswith(f"/{path}")), path)


def _edit(prompt: AiderPrompt, path: str, splices: Sequence[Splice]) -> str:
    text = prompt.files.get(path, "")
    opening, closing = prompt.fence
    if prompt.format == "whole":
        return f"{path}\n{opening}\n{_ended(apply(text, splices))}{closing}"
    blocks = (
        f"{path}\n{opening}\n<<<<<<< SEARCH\n{_ended(search)}=======\n{_ended(replacement)}>>>>>>> REPLACE\n{closing}"
        for search, replacement in _blocks(text, splices)
    )
    return "\n\n".join(blocks)


def _blocks(text: str, splices: Sequence[Splice]) -> Iterator[tuple[str, str]]:
    """Yield search and replacement texts. Each searched text occurs once in the file, as the blocks before left it."""
    current, shift = split_lines(_ended(text)), 0
    for splice in splices:
        first, last = splice.start + shift, splice.end + shift
        start, end = max(first - 1, 0), min(last + 1, len(current))
        while (start > 0 or end < len(current)) and _occurrences(current, start, end) > 1:
            start, end = max(start - (end - start), 0), min(end + (end - start), len(current))
        search = "".join(current[start:end])
        current[first:last] = splice.lines
        shift += len(splice.lines) - (splice.end - splice.start)
        yield search, "".join(current[start : end + len(splice.lines) - (splice.end - splice.start)])


def _occurrences(lines: Sequence[str], start: int, end: int) -> int:
    """Return how often the lines from ``start`` to ``end`` occur. Aider also compares without blanks, so blank lines never count
    as unique."""
    window, size = lines[start:end], end - start
    if not any(line.strip() for line in window):
        return 2
    return sum(lines[at] == window[0] and lines[at : at + size] == window for at in range(len(lines) - size + 1))


def _ended(text: str) -> str:
    """Return ``text`` with a line break at its end, unless it is empty."""
    return text if not text or text.endswith("\n") else f"{text}\n"
