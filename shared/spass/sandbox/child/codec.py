"""JSON by the encoder and the scanner below the module ``json``.

``json`` itself imports ``re``, which doubles the time of a start. Code that replaces functions of ``json`` does not change these.
"""

from __future__ import annotations

from _json import encode_basestring, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeAlias

    Json: TypeAlias = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


class _Rules:
    """The options that the scanner reads from its context."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012 (the scanner clears it after each text)


_scan = make_scanner(_Rules())  # type: ignore[arg-type]  # it reads the attributes alone


def _refuse(value: object) -> object:
    raise TypeError(f"a value of the type {type(value).__name__} is not JSON")


def encode(value: object) -> str:
    """Return ``value`` as JSON in one line.

    Raises:
        TypeError: the value contains something that JSON cannot express.
        ValueError: it contains itself, NaN or an infinity.
        RecursionError: it is nested too deeply.
    """
    encoder = make_encoder({}, _refuse, encode_basestring, None, ": ", ", ", False, False, False)
    return "".join(encoder(value, 0))


def decode(text: str) -> Any:  # noqa: ANN401 (a JSON value)
    """Return the value of a JSON text without white space around it."""
    value, end = _scan(text, 0)
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value
