"""Find the answer of a program in the lines that it writes: one JSON object between two marked lines."""

from typing import Final

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json
from spass.sandbox.child_process import ChildFailed

OUTPUT_START: Final = "---SPASS_OUTPUT_START---"
OUTPUT_END: Final = "---SPASS_OUTPUT_END---"
EFFECT: Final = "---SPASS_EFFECT---"
"""The beginning of a line that asks for an effect. A line of JSON on standard input is its result."""


class AnswerReader:
    """Collect the answer from the lines of a program. Lines before it are ignored."""

    def __init__(self) -> None:
        self._lines: list[str] | None = None  # those after the last start
        self._answer: str | None = None
        self._fault = ""

    @property
    def has_begun(self) -> bool:
        """Return True after the start of an answer."""
        return self._lines is not None

    @property
    def is_complete(self) -> bool:
        """Return True after the end of an answer."""
        return self._answer is not None

    def add(self, line: str) -> None:
        """Take the next line."""
        mark = line.strip()
        if self._answer is not None:
            if mark == OUTPUT_START:
                self._fault = "wrote two answers"
            elif mark:
                self._fault = self._fault or "wrote more after its answer"
        elif mark == OUTPUT_START:
            self._lines = []
        elif mark == OUTPUT_END:
            if self._lines is None:
                self._fault = "wrote the end of an answer without its start"
            else:
                self._answer = "\n".join(self._lines)
        elif self._lines is not None:
            self._lines.append(line)

    def answer(self) -> dict[str, Json]:
        """Return the answer. Call this after the last line. Raise ChildFailed if there is none, there are two, or it is not a
        JSON object."""
        if self._fault:
            raise ChildFailed(self._fault)
        if self._answer is None:
            raise ChildFailed("wrote no answer" if self._lines is None else "wrote the start of an answer without its end")
        try:
            return read_object(self._answer)
        except InvalidJson:  # its reason may quote the answer
            raise ChildFailed("wrote an answer that is not a valid JSON object") from None
