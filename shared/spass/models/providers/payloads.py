"""Parse the payloads of providers, and join the halves of surrogate pairs, because a half can be neither stored nor sent.

JSON can escape half a pair. Models that write an emoji token by token stream such halves.
"""

import json
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from spass.core.messages import ToolCallDelta
from spass.models.providers.http import malformed_response
from spass.models.types import ChatDelta

P = TypeVar("P", bound=BaseModel)

_MAX_TOKENS: Final = 10**12
_MAX_DIGITS: Final = 1000


def _count(value: object) -> int:
    """Return ``value`` if it can be a number of tokens, or 0 (unknown): a wrong count must not fail a good answer."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else 0


LenientText = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")]
"""Text; anything else is read as the empty text."""

Tokens = Annotated[int, BeforeValidator(_count)]
"""A count of tokens; 0 if the provider gives none or an invalid one."""

LenientObject: Final = BeforeValidator(lambda value: value if isinstance(value, dict) else None)
"""A JSON object; anything else is read as null."""

FewItems: Final = Field(max_length=1000)
"""The bound of the tool calls, choices or blocks in one event of a stream or one whole answer. They are read in one piece, and
the event loop serves no other request meanwhile. pydantic keeps an error for each wrong item, of which 64 MiB hold millions."""

FirstError: Final = Field(fail_fast=True)
"""The same for a list that may be long, such as a vector: it is read up to its first wrong item."""

_HIGH_SURROGATES: Final = ("\ud800", "\udbff")


def parse(model: type[P], body: str | bytes) -> P:
    """Parse ``body`` as ``model``. Its texts may hold half a surrogate pair.

    Raises:
        BackendUnavailable: ``body`` violates the protocol.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError:  # pydantic's own JSON parser rejects half a surrogate pair
        pass
    try:
        return model.model_validate(_load_json(body))
    except (ValidationError, ValueError, RecursionError):
        # The details of the error quote the payload, so it must not be the cause.
        raise malformed_response("it is not what the protocol says") from None


def _load_json(body: str | bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:  # raised also for a number with more digits than Python converts
        return json.loads(body, parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else None)


def join_surrogates(text: str) -> str:
    """Return ``text`` with surrogate pairs joined, and with a replacement character for each half without its partner."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """Join surrogate pairs across the pieces of a streamed answer. ``which`` is ``content``, ``refusal``, or the number of the
    tool call whose arguments arrive."""

    def __init__(self) -> None:
        self._halves: dict[str | int, str] = {}

    def end(self) -> ChatDelta | None:
        """Return the halves that remain at the end of the answer as a delta, or None."""
        texts = {which: join_surrogates(half) for which, half in self._halves.items() if half}
        self._halves.clear()
        calls = tuple(ToolCallDelta(index, arguments=text) for index, text in texts.items() if isinstance(index, int))
        return ChatDelta(texts.get("content", ""), calls, refusal=texts.get("refusal", "")) if texts else None

    def add(self, which: str | int, piece: str) -> str:
        """Return the complete part of the text. Keep a first half until its next piece arrives."""
        if not piece:
            return ""
        text = self._halves.get(which, "") + piece
        half = text[-1] if _HIGH_SURROGATES[0] <= text[-1] <= _HIGH_SURROGATES[1] else ""
        self._halves[which] = half
        return join_surrogates(text.removesuffix(half))
