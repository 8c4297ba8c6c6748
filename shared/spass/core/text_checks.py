"""Checks of texts, as pydantic validators: they raise ``ValueError``."""

import re
from collections.abc import Callable, Sequence
from typing import Final

_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_CONTROLS_IN_LINES: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def reject_nul(text: str) -> str:
    """Return ``text`` if it does not contain NUL, which some programs treat as the end of a text."""
    if "\0" in text:
        raise ValueError("must not hold the character NUL")
    return text


def remove_controls(text: str, *, keep_lines: bool = False) -> str:
    """Return ``text`` without control characters. With ``keep_lines``, line breaks and tabs stay."""
    return (_CONTROLS_IN_LINES if keep_lines else _CONTROLS).sub("", text)


def reject_controls(text: str) -> str:
    return _without_controls(text, _CONTROLS)


def reject_controls_in_lines(text: str) -> str:
    """Return ``text`` if it has no control characters but line breaks and tabs."""
    return _without_controls(text, _CONTROLS_IN_LINES)


def _without_controls(text: str, controls: re.Pattern[str]) -> str:
    if found := controls.search(text):
        raise ValueError(f"must not hold the control character U+{ord(found[0]):04X}")
    return text


def reject_blank(text: str) -> str:
    """Return ``text`` if it is not blank and does not contain NUL."""
    if not text.strip():
        raise ValueError("must hold more than blanks")
    return reject_nul(text)


def limit_bytes(limit: int) -> Callable[[str], str]:
    """Return a check that accepts at most ``limit`` bytes of UTF-8."""

    def check(text: str) -> str:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise ValueError("must not hold half of a surrogate pair, which is not a character") from None
        if size > limit:
            raise ValueError(f"must be at most {limit} bytes of UTF-8; it has {size}")
        return text

    return check


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return "; did you mean 'x'?" for the closest of ``known``, or an empty text if none is close."""
    import difflib  # imported here because only mistakes need it

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the end of an "unknown name" message: the closest of ``known``, or all of them if there are at most 16."""
    return suggest_name(name, known) or (f"; known: {', '.join(known)}" if 0 < len(known) <= 16 else "")


def end_sentence(text: str) -> str:
    """Return ``text`` with a full stop, unless it ends with a question mark."""
    return text if text.endswith("?") else f"{text}."
