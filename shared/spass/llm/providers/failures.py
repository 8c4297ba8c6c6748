"""What a status and an error body mean."""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from spass.llm.errors import (
    BackendContextLength,
    BackendFailed,
    BackendRateLimited,
    BackendRefused,
    BackendRejected,
    BackendTooDeep,
    BackendUnavailable,
)
from spass.llm.scrub import scrub

# Of the prompt. That ``max_tokens`` alone is above what a model writes is the request's fault, and no shorter prompt mends it.
_TOO_LONG: Final = re.compile(
    r"context[ _-]?(?:length|window|size|limit)|maximum (?:prompt|context|input) length|prompt is too long|input is too long"
    r"|too many (?:input )?tokens|\b(?:prompt|input)(?: tokens?| length)? exceeds?"
    r"|reduce the length of the (?:messages|prompt|input)",
    re.IGNORECASE,
)
# Some say of our key and our account that the request is bad: xAI and Google of a wrong key, Anthropic of an empty account.
_OF_US: Final = re.compile(
    r"\bapi[ _-]?key|credit balance|insufficient[ _](?:credits?|balance|funds|quota)|\bbilling\b|\bquota\b"
    r"|\busage limits?\b|\b(?:your|this|the) (?:account|organi[sz]ation|team|workspace)\b"
    r"|\baccount (?:is|has|was|does|not|suspended|disabled|deactivated)\b|\baccount_",
    re.IGNORECASE,
)
_READ: Final = 2000  # characters of an error that its kind is found in
_TRANSIENT: Final = frozenset({408, 409, 425})
_TOO_DEEP: Final = 508  # of a gateway like this one: each try again would be multiplied by every gateway on the way
_OF_THE_REQUEST: Final = frozenset({400, 404, 413, 422})


class Words(NamedTuple):
    """What an error body says: its message and its code, each empty where there is none."""

    message: str = ""
    code: str = ""


def failure_of(status: int, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str] = ()) -> BackendFailed:
    """The failure that an answer with ``status`` is. Its message is the provider's, scrubbed, also of ``secrets``."""
    try:
        words = words_of(json.loads(body))
    except (ValueError, RecursionError):
        words = Words()
    return failure(status, words, wait=retry_after(headers), secrets=secrets)


def failure(status: int, words: Words, *, wait: float | None = None, secrets: Sequence[str] = ()) -> BackendFailed:
    """The same for a status that came inside a stream. ``wait`` is in seconds."""
    message = scrub(words.message, secrets=secrets) or f"The provider answered {status}."
    if status == 429:
        return BackendRateLimited(message, status=status, retry_after=wait)
    if status == _TOO_DEEP:
        return BackendTooDeep(message, status=status)
    if status in _TRANSIENT or status >= 500:
        return BackendUnavailable(message, status=status, retry_after=wait)
    if status in _OF_THE_REQUEST:
        said = f"{words.code} {words.message[:_READ]}"
        if _TOO_LONG.search(said):
            return BackendContextLength(message, status=status)
        if not _OF_US.search(said):
            return BackendRejected(message, status=status)
    return BackendRefused(message, status=status)


def words_of(payload: object) -> Words:
    """The words of an error body, in any of the shapes providers use."""
    if not isinstance(payload, dict):
        return Words(payload) if isinstance(payload, str) else Words()
    for key in ("error", "message", "detail"):
        inner = payload.get(key)
        if isinstance(inner, dict):
            return words_of(inner)
        if isinstance(inner, str) and inner:
            code = next((word for name in ("code", "type") if isinstance(word := payload.get(name), str)), "")
            return Words(inner, code)
    return Words()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as ``Retry-After`` says it (RFC 9110 §10.2.3: seconds or a date), or OpenAI's finer ``retry-after-ms``."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    try:
        return max(0.0, moment.timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
