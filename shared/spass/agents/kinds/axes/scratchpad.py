"""Keep the beginning of a result, without a model call."""

from typing import Final

from spass.agents.kinds.axes.side_calls import Effects, SideCalls, clip_bytes
from spass.core.effects import StoreNote, ToolOutcome

MAX_NOTE_BYTES: Final = 4096
FIRST: Final = 1000


def keep_beginning(_calls: SideCalls, outcome: ToolOutcome) -> Effects[None]:
    """Keep the tool's name and the first 1,000 characters. The time of the call is that of the note."""
    yield StoreNote(clip_bytes(f"{outcome.call.name}: {outcome.message.content[:FIRST]}", MAX_NOTE_BYTES))
