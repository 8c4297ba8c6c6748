"""The values of a compaction: plan, summary, result."""

from dataclasses import dataclass
from typing import Final, Self

from spass.core.ids import SessionId, SummaryId, new_id
from spass.core.time import Timestamp
from spass.sessions.record import TurnRecord
from spass.sessions.session import Session


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The ids and the cut of a compaction, fixed before a model is called, so that a retry continues with the same.

    Messages of the source with a ``seq`` below ``kept_from`` are summarised. Turns added to the source later are kept.
    """

    source: SessionId
    successor: SessionId
    summary: SummaryId
    kept_from: int

    @classmethod
    def new(cls, source: SessionId, kept_from: int) -> Self:
        return cls(source, SessionId(new_id("ses")), SummaryId(new_id("sum")), kept_from)


@dataclass(frozen=True, slots=True)
class Summary:
    """The text that a model wrote. ``model`` is its name in the catalogue."""

    text: str
    model: str


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A summary as it is stored with the session that starts with it. It covers the messages ``first_seq`` to ``last_seq`` of
    the source, both included."""

    id: SummaryId
    source: SessionId
    successor: SessionId
    text: str
    model: str
    created_at: Timestamp
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The outcome of a compaction: the successor, its first turn record, and the summary."""

    session: Session
    first: TurnRecord
    summary: SummaryRecord


_PREFIX: Final = "[compaction summary from session "


def summary_message(record: SummaryRecord) -> str:
    """Return the first message of a successor."""
    return f"{_PREFIX}{record.source}] {record.text}"


def summary_text(message: str) -> str:
    """Return the summary in the first message of a successor."""
    return message.partition("] ")[2] if message.startswith(_PREFIX) else message
