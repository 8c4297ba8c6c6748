"""What a compaction is made of."""

from dataclasses import dataclass
from typing import Final, Self

from spass.core.ids import SessionId, SummaryId, new_id
from spass.core.time import Timestamp
from spass.sessions.record import TurnRecord
from spass.sessions.session import Session


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What is decided before a model is asked, so that whoever takes the work up goes on with the same: messages of the source
    below ``kept_from`` are summarised. Turns that the source gets meanwhile are kept as well.
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
    """What a model wrote; ``model`` is its name in the catalogue."""

    text: str
    model: str


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A summary as it is kept with the session that begins with it: of the messages ``first_seq`` to ``last_seq`` of the source,
    both included."""

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
    """A compaction that took place: the successor, the one item it begins with, and the summary."""

    session: Session
    first: TurnRecord
    summary: SummaryRecord


_PREFIX: Final = "[compaction summary from session "


def summary_message(record: SummaryRecord) -> str:
    """The first message of a successor."""
    return f"{_PREFIX}{record.source}] {record.text}"


def summary_text(message: str) -> str:
    """The summary in the first message of a session that follows another."""
    return message.partition("] ")[2] if message.startswith(_PREFIX) else message
