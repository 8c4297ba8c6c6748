"""Parse the ``traceparent`` of a request or of a message (https://www.w3.org/TR/trace-context/#traceparent-header)."""

import re
from dataclasses import dataclass
from typing import Final

_VERSION_0: Final = "00"
_LENGTH: Final = 55  # of version 00; a later version may be followed by more
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class RemoteSpan:
    """A span of another process, as 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str


def parse_traceparent(text: str | None) -> RemoteSpan | None:
    """Return the span that ``text`` names, or None if it is malformed. The flags have no effect: a trace is sampled by its id."""
    if text is None or not (match := _FORM.fullmatch(text[:_LENGTH])):
        return None
    version, trace_id, span_id = match.groups()
    rest = text[_LENGTH : _LENGTH + 1]
    if version == "ff" or (rest and (version == _VERSION_0 or rest != "-")):
        return None
    if not (trace_id.strip("0") and span_id.strip("0")):
        return None
    return RemoteSpan(trace_id, span_id)
