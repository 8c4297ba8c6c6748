"""Effects and their results as messages of a kind that runs in another process."""

from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

from spass.core.codec import decode_message
from spass.core.effects import (
    Answer,
    AssistantReply,
    CallTools,
    CellResult,
    Effect,
    FetchPage,
    ForeignResult,
    Infer,
    Page,
    Recalled,
    RecordResult,
    ReportStatus,
    RunCode,
    RunForeign,
    SearchNotes,
    SetState,
    StoreNote,
    ToolOutcome,
)
from spass.core.messages import Json

_RESULTS: Final[Mapping[type, Any]] = {
    Infer: AssistantReply,
    CallTools: tuple[ToolOutcome, ...],
    RecordResult: NoneType,
    ReportStatus: NoneType,
    RunCode: CellResult,
    FetchPage: Page,
    RunForeign: ForeignResult,
    SearchNotes: Recalled,
    StoreNote: str,
    SetState: NoneType,
}


def decode_effect(value: Json) -> Effect | Answer:
    """Return an effect or an answer, or raise ``ValueError``."""
    effect: Effect | Answer = decode_message(Effect | Answer, value, "effect")
    return effect


def decode_result(effect: Effect, value: Json) -> object:
    """Return the result of ``effect``, or raise ``ValueError``."""
    result: object = decode_message(_RESULTS[type(effect)], value, "result")
    return result
