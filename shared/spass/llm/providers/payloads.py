"""Parse the payloads of providers, and join the halves of surrogate pairs, which could be neither stored nor sent.

JSON can escape half a pair. A model that writes an emoji token by token streams it that way.
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
    """Return ``value`` if it can be a number of tokens, else 0 (unknown): a wrong count must not fail a good answer."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else 0


def _object(value: object) -> object:
    return value if isinstance(value, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


LenientText = Annotated[str, BeforeValidator(_text)]
"""Text; anything else is read as the empty text."""

Tokens = Annotated[int, BeforeValidator(_count)]
"""A count of tokens; 0 if the provider gives none, or an impossible one."""

LenientObject: Final = BeforeValidator(_object)
"""A JSON object; anything else is read as null."""

_HIGH_SURROGATES: Final = ("\ud800", "\udbff")


def parse(model: type[P], body: str | bytes) -> P:
    """Parse ``body`` as ``model``. Its texts may hold half a surrogate pair, which pydantic's own JSON parser rejects.

    Raises:
        BackendUnavailable: it breaks the protocol.
    """
    try:
        return model.model_validate(_loaded(body))
    except (ValidationError, ValueError, RecursionError):
        # The details of the error quote the payload, so it must not be the cause.
        raise malformed_response("it is not what the protocol says") from None


def _loaded(body: str | bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:  # also of a number with more digits than Python converts
        return json.loads(body, parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else None)


def join_surrogates(text: str) -> str:
    """Return ``text`` with surrogate pairs joined, and with a replacement character for each half that stands alone."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """Join surrogate pairs across the pieces of one streamed answer: a first half waits for the next piece of its text."""

    def __init__(self) -> None:
        self._waiting: dict[str | int, str] = {}

    def content(self, piece: str) -> str:
        """Return as much of the text as is complete."""
        return self._more("content", piece)

    def refusal(self, piece: str) -> str:
        """Return as much of the refusal as is complete."""
        return self._more("refusal", piece)

    def arguments(self, index: int, piece: str) -> str:
        """Return as much of the arguments of tool call number ``index`` as is complete."""
        return self._more(index, piece)

    def end(self) -> ChatDelta | None:
        """Return what is left at the end of the answer, or None."""
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
