"""The axis ``observation_compression``: what the model reads of a long result."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from spass.agents.kinds.axes.side_calls import Effects, SideCalls
from spass.agents.kinds.axes.summarize import summarize
from spass.agents.kinds.axes.truncate import truncate
from spass.core.effects import RecordResult, ToolOutcome

Compression: TypeAlias = Literal["summarize", "truncate", "none"]
Compress: TypeAlias = Callable[[SideCalls, str], Effects[str]]
"""Return what the model reads of the text of a long result."""

LONG: Final = 2000
"""Characters of the longest result that is not compressed."""


def leave(_calls: SideCalls, text: str) -> Effects[str]:
    """Return the whole text."""
    yield from ()
    return text


COMPRESSIONS: Final[Mapping[Compression, Compress]] = {"summarize": summarize, "truncate": truncate, "none": leave}


def compress(compression: Compression, calls: SideCalls, outcome: ToolOutcome) -> Effects[ToolOutcome]:
    """Return the outcome with the text that the model reads, which is also what the history keeps."""
    whole = outcome.message.content
    if len(whole) <= LONG:
        return outcome
    text = yield from COMPRESSIONS[compression](calls, whole)
    if text == whole:
        return outcome
    yield RecordResult(outcome.call.id, text)
    return replace(outcome, message=replace(outcome.message, content=text))
