"""The axis ``memory_extraction``: what an operator keeps of a result."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

from spass.agents.kinds.axes.causality_graph import keep_edges
from spass.agents.kinds.axes.scratchpad import keep_beginning
from spass.agents.kinds.axes.side_calls import Effects, SideCalls
from spass.agents.kinds.axes.structured_json import keep_json
from spass.core.effects import ToolOutcome

Extraction: TypeAlias = Literal["causality_graph", "scratchpad", "structured_json", "none"]
Extract: TypeAlias = Callable[[SideCalls, ToolOutcome], Effects[None]]
"""Keep notes of a result."""

SHORT: Final = 50
"""Characters of a result below which nothing is kept of it."""
MEMORY_TOOLS: Final = frozenset({"memory_store", "memory_search", "memory_read", "memory_write"})
_NOT_EXTRACTED: Final = MEMORY_TOOLS | {"think"}


def keep_nothing(_calls: SideCalls, _outcome: ToolOutcome) -> Effects[None]:
    """Keep nothing."""
    yield from ()


EXTRACTIONS: Final[Mapping[Extraction, Extract]] = {
    "causality_graph": keep_edges,
    "scratchpad": keep_beginning,
    "structured_json": keep_json,
    "none": keep_nothing,
}


def extract(extraction: Extraction, calls: SideCalls, outcome: ToolOutcome) -> Effects[None]:
    """Keep notes of the whole result, if it is that of a call that succeeded, and if it is worth a note."""
    if outcome.ok and outcome.call.name not in _NOT_EXTRACTED and len(outcome.message.content) >= SHORT:
        yield from EXTRACTIONS[extraction](calls, outcome)
