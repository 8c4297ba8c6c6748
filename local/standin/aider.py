"""Answer Aider's prompt with an edit, in the format that the prompt asks for: search and replace blocks, or whole files.

The prompts and formats are those of Aider 0.86 (https://github.com/Aider-AI/aider, ``aider/coders``).
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from local.standin.conversation import NOTICE, Message, text_of
from local.standin.workspace import files_in, functions_in, quotes_in

_ROLE: Final = "Act as an expert software developer."
_BLOCKS: Final = "*SEARCH/REPLACE block*"
_LISTING: Final = "*file listing*"
_FILES: Final = "I have *added these files to the chat*"
_CONFIRMATION: Final = "Ok, any changes I propose will be to those files."
# Aider repeats its rules at the end of the user's message.
_REMINDER: Final = re.compile(
    r"\n\n(?:# \*SEARCH/REPLACE block\* Rules:|To suggest changes to a file you MUST return).*", re.DOTALL
)
_OPENING: Final = re.compile(r"\n[^\n]+\n(`{3,4}|<(?:source|code|pre|codeblock|sourcecode)>)\n")
_SECTION: Final = re.compile(r"\bsection (?:about|on) (?:the )?([\w -]+?)(?= to\b|[.!]?$)", re.MULTILINE)

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class AiderPrompt:
    """A request of Aider: the instruction, the texts of the files by path, and the format of the answer."""

    wants_blocks: bool
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
    # After an answer that Aider cannot read, its complaint follows: the instruction is the first message.
    confirmed = max((at for at, text in enumerate(texts) if text.startswith(_CONFIRMATION)), default=-1)
    spoken = [at for at, message in enumerate(messages) if message.get("role") == "user"]
    asked = next((at for at in spoken if at > confirmed >= 0), spoken[-1] if spoken else 0)
    return AiderPrompt(_BLOCKS in rules, _REMINDER.sub("", texts[asked]).strip(), files, fence)


def answer_aider(prompt: AiderPrompt) -> str:
    """Return a sentence and the edits. Return only a sentence if the instruction does not say plainly what to change."""
    named = [_match_path(path, prompt.files) for path in files_in(prompt.instruction)]
    texts = {path: prompt.files.get(path, "") for path in named or prompt.files}
    changes = {path: _edit(prompt.instruction, path, text) for path, text in texts.items()}
    edits = [_write(prompt, path, texts[path], new) for path, new in changes.items() if new != texts[path]]
    if not edits:
        return f"{NOTICE} and do not see what to change in these files."
    return "\n\n".join(["I change this as you asked.", *edits])


def _read_files(text: str) -> tuple[dict[str, str], tuple[str, str]]:
    """Return the texts of the files that a message lists, and the fences around each. No line of a file begins with a fence."""
    opening = _OPENING.search(text)
    if opening is None:
        return {}, ("```", "```")
    fence = (opening[1], opening[1].replace("<", "</"))
    before, after = map(re.escape, fence)
    listed = re.findall(rf"\n([^\n]+)\n{before}\n(.*?){after}(?=\n?\Z|\n\n[^\n]+\n{before}\n)", text, re.DOTALL)
    return dict(listed), fence


def _match_path(path: str, files: Mapping[str, str]) -> str:
    """Return the path of the file whose name the instruction writes without its folder, otherwise ``path``."""
    return next((known for known in files if known == path or known.endswith(f"/{path}")), path)


def _edit(instruction: str, path: str, text: str) -> str:
    """Return the text of a file after the change that the instruction asks for, or ``text`` if it asks for none."""
    quoted = [quote for quote in quotes_in(instruction) if files_in(quote) != [quote]]
    section = _SECTION.search(instruction)
    if "docstring" in instruction:
        for name in functions_in(instruction):
            text = _add_docstring(text, name)
        return text
    if re.search(r"\breplace\b", instruction, re.IGNORECASE):
        return text.replace(quoted[0], quoted[1]) if len(quoted) > 1 else text
    if section:
        return f"{_ended(text)}\n## {section[1].capitalize()}\n\nTo be written.\n".lstrip()
    if quoted:
        return f"{_ended(text)}{quoted[0]}\n"
    return text or f"# {path.rpartition('/')[2].partition('.')[0].capitalize()}\n"


def _add_docstring(text: str, name: str) -> str:
    """Document a Python function that has no docstring yet and whose body begins with a statement on a line of its own."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError):
        return text
    lines = text.split("\n")
    for node in nodes:
        if isinstance(node, _FUNCTIONS) and node.name == name and ast.get_docstring(node) is None:
            first = node.body[0]
            indent = lines[first.lineno - 1][: first.col_offset]
            if not isinstance(first, _FUNCTIONS) and not indent.strip():
                words = "Run the program." if name == "main" else f"{name.replace('_', ' ').capitalize()}."
                lines.insert(first.lineno - 1, f'{indent}"""{words}"""')
                break
    return "\n".join(lines)


def _write(prompt: AiderPrompt, path: str, old: str, new: str) -> str:
    """Return an edit. A block searches for the whole file, which is there exactly once."""
    opening, closing = prompt.fence
    if prompt.wants_blocks:
        return f"{path}\n{opening}\n<<<<<<< SEARCH\n{_ended(old)}=======\n{_ended(new)}>>>>>>> REPLACE\n{closing}"
    return f"{path}\n{opening}\n{_ended(new)}{closing}"


def _ended(text: str) -> str:
    """Return ``text`` with a line break at its end, unless it is empty."""
    return text if not text or text.endswith("\n") else f"{text}\n"
