"""Write Python when a kind asks for it: for a sum over a table, and for the number of lines that mention something.

The kind ``rlm`` keeps the data in the variable ``context`` and wants ``FINAL(answer)``. The kind ``native_openhands`` shows the
data in the conversation: the stand-in copies it into its code, and answers from the output.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from local.standin.conversation import Message, text_of
from spass.calls.datamark import remove_marks

_FACTS: Final = re.compile(r"^`context` is ", re.MULTILINE)  # by which the kind rlm tells the size of the data
_CODE: Final = "```python\n"  # in the system prompt of a kind that runs code
_DATA: Final = "<data mark="
_OUTPUT: Final = "Output: "
_LINES: Final = re.compile(r"\bhow many lines mention ([^?\n]+)", re.IGNORECASE)
_SUM: Final = re.compile(r"\bsum of (?:the column )?(\w+)", re.IGNORECASE)
_TEXT_OF_CONTEXT: Final = 'text = context if isinstance(context, str) else "\\n".join(map(str, context))'
_COUNT: Final = "value = sum({word!r} in line for line in text.splitlines())"
_ADD: Final = """\
from decimal import Decimal

rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
head = next(at for at, row in enumerate(rows) if {word!r} in row)
column = rows[head].index({word!r})
value = sum(Decimal(row[column]) for row in rows[head + 1 :] if len(row) == len(rows[head]))"""


@dataclass(frozen=True, slots=True)
class _Program:
    """Code that computes ``value`` from ``text``, and the words before and after the value in the answer."""

    code: str
    before: str
    after: str


def answer_with_code(messages: Sequence[Message]) -> str | None:
    """Return a block of code, or the answer from its output. Return None if the kind or the question needs no code."""
    prompt = "\n".join(text_of(message) for message in messages if message.get("role") == "system")
    hides_data = bool(_FACTS.search(prompt))
    asked = max((at for at, message in enumerate(messages) if _is_said(message)), default=None)
    program = None if asked is None or not (hides_data or _CODE in prompt) else _plan(text_of(messages[asked]))
    if asked is None or program is None:
        return None
    outputs = [text for text in _data(messages[asked + 1 :]) if text.startswith(_OUTPUT)]
    if outputs:
        return f"{program.before}{outputs[-1].removeprefix(_OUTPUT).strip()}{program.after}"
    if hides_data:
        final = f"FINAL({program.before!r} + str(value) + {program.after!r})"
        return _block(_TEXT_OF_CONTEXT, program.code, final)
    text = "\n".join(_data(messages[: asked + 1]))
    return _block(f"text = {text!r}", program.code, "print(value)") if text else None


def _is_said(message: Message) -> bool:
    return message.get("role") == "user" and not text_of(message).startswith(_DATA)


def _data(messages: Sequence[Message]) -> list[str]:
    texts = (text_of(message) for message in messages if message.get("role") == "user")
    return [remove_marks(text) for text in texts if text.startswith(_DATA)]


def _plan(question: str) -> _Program | None:
    """Return the program that the question asks for, or None."""
    if counted := _LINES.search(question):
        return _Program(_COUNT.format(word=counted[1]), "", f" lines mention {counted[1]}.")
    if added := _SUM.search(question):
        return _Program(_ADD.format(word=added[1]), f"The sum of {added[1]} is ", ".")
    return None


def _block(*parts: str) -> str:
    return "\n".join(("I count with code.", "", "```python", *parts, "```"))
