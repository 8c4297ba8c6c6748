"""Parse a message that is a command about versions. Nothing outside a short list is accepted, and nothing is ever executed."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spass.calls.text_cleaning import strip_invisible
from spass.tools.base import ToolError

COMMAND_NOT_ALLOWED: Final = "command_not_allowed"

_STARTS: Final = ("/", "!")
BLANKS: Final = " \t\r\n"
"""Characters around a command that are no part of it. Others make it another text, as every character within it does."""
_SHELL: Final = re.compile(r"[;&|<>`$\\\x00-\x1f\x7f]")
"""Characters that a shell could read. No command needs them."""
_MAX_WORDS: Final = 120
_SHOWN_CHARACTERS: Final = 80


class _Syntax(NamedTuple):
    """The options of a command: those with a value, those without, and how many other words it takes."""

    with_value: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    words: tuple[int, int] = (0, 0)


_ANY: Final = _MAX_WORDS
_COMMANDS: Final[Mapping[str, _Syntax]] = {
    "undo": _Syntax(),
    "diff": _Syntax(),
    "git status": _Syntax(),
    "git log": _Syntax(frozenset({"-n"}), frozenset({"--oneline"}), (0, _ANY)),
    "git diff": _Syntax(words=(0, _ANY)),
    "git show": _Syntax(words=(0, _ANY)),
    "git mv": _Syntax(words=(2, 2)),
    "git rm": _Syntax(flags=frozenset({"-r"}), words=(1, _ANY)),
    "git restore": _Syntax(frozenset({"--source", "-s"}), words=(1, _ANY)),
    "git revert": _Syntax(flags=frozenset({"--no-edit"}), words=(1, 1)),
}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command. ``name`` is one of ``_COMMANDS``; ``words`` are what is neither an option nor its value. ``paths`` are the words
    after ``--``, which are paths in any case."""

    name: str
    words: Sequence[str] = ()
    paths: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def option(self, *names: str) -> str | None:
        """Return the value of the first of the options ``names`` that is there."""
        return next((value for name in names if (value := self.options.get(name)) is not None), None)


def is_command(message: str) -> bool:
    """Return True if ``message`` is a command, which never reaches the editor. Invisible characters before it do not hide it."""
    return strip_invisible(message).lstrip().startswith(_STARTS)


def parse_command(message: str) -> CommandLine:
    """Return the command in ``message``.

    Raises:
        ToolError: ``command_not_allowed``: it is not one of the commands, or has an option or a character that is not allowed.
    """
    text = message.strip(BLANKS)
    if not text.startswith("/") or _SHELL.search(text):
        raise not_allowed(text)
    try:
        words = shlex.split(text[1:])
    except ValueError as error:
        raise not_allowed(text, f"It cannot be read: {error}.") from None
    name = " ".join(words[:2]) if words[:1] == ["git"] else "".join(words[:1])
    syntax = _COMMANDS.get(name)
    if syntax is None or not f"{text} ".startswith(f"/{name} "):  # neither "/ undo" nor "/'undo'" is a command
        raise not_allowed(text)
    return _parse_words(name, syntax, words[name.count(" ") + 1 :], text)


def not_allowed(command: str, reason: str = "") -> ToolError:
    """Return the error for a command that is not allowed."""
    shown = repr(command[:_SHOWN_CHARACTERS])
    names = ", ".join(f"/{name}" for name in _COMMANDS)
    return ToolError(
        f"The command {shown} is not allowed. {reason + ' ' if reason else ''}A message that begins with / or ! is a command. "
        f"Use one of: {names}. To ask for a change, begin the message with a word.",
        code=COMMAND_NOT_ALLOWED,
    )


def _parse_words(name: str, syntax: _Syntax, words: Sequence[str], text: str) -> CommandLine:
    split = words.index("--") if "--" in words else len(words)
    paths = words[split + 1 :]
    plain: list[str] = []
    options: dict[str, str] = {}
    rest = iter(_short_counts(name, words[:split]))
    for word in rest:
        option, has_value, value = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
        elif word in syntax.flags:
            options[word] = ""
        elif option in syntax.with_value and (following := value if has_value else next(rest, None)):
            options[option] = following
        else:
            raise not_allowed(text, f"It may not have the option {word[:_SHOWN_CHARACTERS]!r}.")
    least, most = syntax.words
    if not least <= len(plain) + len(paths) <= most:
        raise not_allowed(text, f"/{name} needs {_describe(least, most)}.")
    return CommandLine(name, plain, paths, options)


def _short_counts(name: str, words: Sequence[str]) -> list[str]:
    """Return ``words`` with the short form ``-5`` of ``git log`` written as ``-n=5``."""
    return [f"-n={word[1:]}" if name == "git log" and re.fullmatch(r"-\d{1,4}", word) else word for word in words]


def _describe(least: int, most: int) -> str:
    if least == most:
        return f"{least} words after its name" if least != 1 else "one word after its name"
    return f"{least} to {most} words after its name"
