"""Provider payloads as they come, and text without halves of surrogate pairs, which nothing further on could store or send.

JSON can escape half a pair; a model that writes an emoji token by token streams it so.
"""

import json
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from spass.llm.providers.http import malformed_response
from spass.llm.types import ChatDelta, ToolCallDelta

P = TypeVar("P", bound=BaseModel)

_MAX_TOKENS: Final = 10**12
_MAX_DIGITS: Final = 1000


def _count(value: object) -> int:
    """Return ``value`` if it can be a number of tokens, else 0, which says nothing: no count is worth a good answer."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else 0


def _object(value: object) -> object:
    return value if isinstance(value, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


LenientText = Annotated[str, BeforeValidator(_text)]
"""Reads anything but a text as an empty one."""

Tokens = Annotated[int, BeforeValidator(_count)]
"""A count of tokens as a provider says it; 0 if it says none that can be believed."""

LenientObject: Final = BeforeValidator(_object)
"""Reads anything but a JSON object as null."""

_HIGH_SURROGATES: Final = ("\ud800", "\udbff")


def parse(model: type[P], body: str | bytes) -> P:
    """``body`` as ``model``. Its texts may hold half surrogate pairs, for which pydantic's own reader would refuse all of it.

    Raises:
        BackendUnavailable: it is not what the protocol says.
    """
    try:
        return model.model_validate(_loaded(body))
    except (ValidationError, ValueError, RecursionError):
        # Its details quote the payload, so it is not kept as the cause.
        raise malformed_response("it is not what the protocol says") from None


def _loaded(body: str | bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:  # also of a number with more digits than Python converts
        return json.loads(body, parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else None)


def join_surrogates(text: str) -> str:
    """``text`` with its two halves of a pair as one character, and a replacement character for half a pair that stands alone."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """The pieces of one streamed answer, cleaned: a first half at the end of a piece waits for its text's next piece."""

    def __init__(self) -> None:
        self._waiting: dict[str | int, str] = {}

    def content(self, piece: str) -> str:
        """What of the text can be passed on now."""
        return self._more("content", piece)

    def refusal(self, piece: str) -> str:
        """The same of a refusal."""
        return self._more("refusal", piece)

    def arguments(self, index: int, piece: str) -> str:
        """The same of the arguments of the tool call number ``index``."""
        return self._more(index, piece)

    def end(self) -> ChatDelta | None:
        """What is left; None if nothing is."""
        left = {which: join_surrogates(half) for which, half in self._waiting.items() if half}
        self._waiting.clear()
        calls = tuple(ToolCallDelta(index, arguments=text) for index, text in left.items() if isinstance(index, int))
        return ChatDelta(left.get("content", ""), calls, refusal=left.get("refusal", "")) if left else None

    def _more(self, which: str | int, piece: str) -> str:
        if not piece:
            return ""
        text = self._waiting.get(which, "") + piece
        half = text[-1] if _HIGH_SURROGATES[0] <= text[-1] <= _HIGH_SURROGATES[1] else ""
        self._waiting[which] = half
        return join_surrogates(text.removesuffix(half))
