"""Write Python when a kind asks for it: for a sum over a table, and for the number of lines that mention something.

The kind ``rlm`` keeps the data in the variable ``context`` and wants ``FINAL(answer)``. The kind ``native_openhands`` shows the
data in the conversation: the stand-in copies it into its code, and answers from the output.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from local.standin.conversation import Conversation, Message, text_of
from spass.calls.datamark import remove_marks

_FACTS: Final = re.compile(r"^`context` is ", re.MULTILINE)  # by which the kind rlm tells the size of the data
_CODE: Final = "```python\n"  # in the system prompt of a kind that runs code
_DATA: Final = "<data mark="
_OUTPUT: Final = "Output: "
_ERROR: Final = re.compile(r"^Error: (?:Traceback.*\n(?:[ \t].*\n)*)?(?P<error>.*)", re.MULTILINE)
_LINES: Final = re.compile(
    r"\b(?:how many|wie ?viele)\b[^?\n]*?\b(?:lines|zeilen)\b[^?\n]*?"
    r"\b(?:mention|contain|erwähnen|enthalten|nennen) +(?P<words>[^?\n]+)",
    re.IGNORECASE,
)
_SUM: Final = re.compile(r"\b(?:sum|total|summe)\b(?P<rest>[^?\n]*)", re.IGNORECASE)
_QUOTED: Final = re.compile(r"[\"'`„“«]([^\"'`”“»]+)[\"'`”“»]")
_NOT_A_COLUMN: Final = re.compile(
    r"(?:up|of|over|all|the|in|column|field|values|der|des|die|von|aller|über|spalte|werte)", re.IGNORECASE
)
_TEXT_OF_CONTEXT: Final = 'text = context if isinstance(context, str) else "\\n".join(map(str, context))'
_COUNT: Final = """\
value = sum({words!r} in line.lower() for line in text.splitlines())"""
_ADD: Final = """\
import re
from decimal import Decimal

lines = [line.strip("| ") for line in text.strip().splitlines()]
sign = max(",;|\\t", key=lines[0].count)
header, *rows = [[cell.strip('" ') for cell in line.split(sign)] for line in lines]
column = [name.lower() in {names!r} for name in header].index(True)
cells = [row[column] for row in rows if len(row) == len(header)]
value = sum(Decimal(cell) for cell in cells if re.fullmatch(r"-?\\d+(\\.\\d+)?", cell))"""


@dataclass(frozen=True, slots=True)
class _Program:
    """Code that computes ``value`` from ``text``, and the answer with the placeholder ``{value}``."""

    code: str
    answer: str
    names: Sequence[str]


def answer_with_code(messages: Sequence[Message]) -> str | None:
    """Return a block of code, or the answer from its output. Return None if the kind or the question needs no code."""
    prompt = "\n".join(text_of(message) for message in messages if message.get("role") == "system")
    hides_data = bool(_FACTS.search(prompt))
    if not hides_data and _CODE not in prompt:
        return None
    asked = max((at for at, message in enumerate(messages) if _is_said(message)), default=None)
    program = None if asked is None else _plan(Conversation.read(messages[: asked + 1]))
    if asked is None or program is None:
        return None
    outputs = [text for text in _data(messages[asked + 1 :]) if text.startswith(_OUTPUT)]
    if outputs:
        return _from_output(program, outputs[-1].removeprefix(_OUTPUT))
    if hides_data:
        return _block("I count with code.", _TEXT_OF_CONTEXT, program.code, f"FINAL(f{program.answer!r})")
    text = _passage(messages, text_of(messages[asked]), program.names)
    return _block("I count with code.", f"text = {_literal(text)}", program.code, "print(value)") if text else None


def _is_said(message: Message) -> bool:
    return message.get("role") == "user" and not text_of(message).startswith(_DATA)


def _data(messages: Sequence[Message]) -> list[str]:
    texts = (text_of(message) for message in messages if message.get("role") == "user")
    return [remove_marks(text) for text in texts if text.startswith(_DATA)]


def _plan(conversation: Conversation) -> _Program | None:
    """Return the program that the question asks for, or None."""
    question, german = conversation.question_text, conversation.is_german
    if counted := _LINES.search(question):
        words = _strip_quotes(counted["words"])
        answer = "{value} Zeilen erwähnen %s." if german else "{value} lines mention %s."
        return _Program(_COUNT.format(words=words.lower()), answer % _escape_braces(words), ())
    if (added := _SUM.search(question)) and (column := _column(added["rest"])):
        names = tuple(dict.fromkeys((column.lower(), column.lower().removesuffix("s"))))
        answer = "Die Summe von %s ist {value}." if german else "The sum of %s is {value}."
        return _Program(_ADD.format(names=names), answer % _escape_braces(column), names)
    return None


def _column(words: str) -> str | None:
    """Return what is quoted in ``words``, otherwise the first word that can be the name of a column."""
    if quoted := _QUOTED.search(words):
        return quoted[1]
    return next((word for word in re.findall(r"\w+", words) if not _NOT_A_COLUMN.fullmatch(word)), None)


def _strip_quotes(words: str) -> str:
    quoted = _QUOTED.search(words)
    return quoted[1] if quoted else words.strip(" .!")


def _escape_braces(words: str) -> str:
    return words.replace("{", "{{").replace("}", "}}")


def _passage(messages: Sequence[Message], question: str, names: Sequence[str]) -> str:
    """Return the looked-up text that is a table with a column of one of ``names``, or all of it; without any, what follows the
    question's first line."""
    passages = [text for text in _data(messages) if not text.startswith(_OUTPUT)] or [question.partition("\n")[2].strip()]
    return next((text for text in passages if _has_column(text, names)), "\n".join(passages))


def _has_column(text: str, names: Sequence[str]) -> bool:
    header = text.strip().partition("\n")[0].lower()
    return any(cell.strip('" ') in names for cell in re.split(r"[,;|\t]", header))


def _literal(text: str) -> str:
    return repr(text) if '"' in text or "\\" in text else f'"""\n{text.strip()}\n"""'


def _block(words: str, *parts: str) -> str:
    return "\n".join((words, "", "```python", *parts, "```"))


def _from_output(program: _Program, output: str) -> str:
    if failed := _ERROR.search(output):
        return f"The code failed. Error: {failed['error']}"
    return program.answer.format(value=output.strip())
