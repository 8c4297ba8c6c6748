"""Choose the cut of a session: messages before it are summarised, messages after it are kept unchanged. Store the summary, and
convert it to and from the first message of a successor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from spass.core.errors import NothingToCompact
from spass.core.ids import SessionId, SummaryId, new_id
from spass.core.messages import Role
from spass.core.time import Timestamp
from spass.sessions.record import StoredMessage
from spass.sessions.session import Session
from spass.store import keys
from spass.store.codec import decode
from spass.store.tenant_store import TenantStore


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


def plan_compaction(session: Session, live: Sequence[StoredMessage]) -> CompactionPlan:
    """Return the plan for ``session``, whose live messages are all of ``live``. Errors are those of ``first_kept_seq``."""
    is_successor = session.parent_session_id is not None
    return CompactionPlan.new(session.id, first_kept_seq(live, session.compact_keep_last_n, starts_with_summary=is_successor))


def first_kept_seq(live: Sequence[StoredMessage], keep_last: int, *, starts_with_summary: bool) -> int:
    """Return the ``seq`` of the first message to keep; the ``seq`` after the last one if none is kept.

    At least the last ``keep_last`` of the ``live`` messages are kept. The cut moves back to a user message, so that no tool call
    is separated from its result and no question from its answer. If the first message is the summary of an earlier compaction,
    it always goes into the new summary.

    Raises:
        NothingToCompact: there is nothing to summarise except an earlier summary.
    """
    first = 1 if starts_with_summary else 0
    cut = len(live) - keep_last
    while first < cut < len(live) and live[cut].message.role is not Role.USER:
        cut -= 1
    if cut <= first:
        raise NothingToCompact(
            f"This session keeps its last {keep_last} messages and has no older turn that is not yet summarised.",
            details={"live_message_count": len(live), "compact_keep_last_n": keep_last},
        )
    return live[cut].seq if cut < len(live) else live[-1].seq + 1


_PREFIX: Final = "[compaction summary from session "


@dataclass(frozen=True, slots=True)
class Summary:
    """The text that a model wrote. ``model`` is its name in the catalogue."""

    text: str
    model: str


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A stored summary. It replaces the messages ``first_seq`` to ``last_seq`` (both included) of the source session. It is
    stored with the successor session. The names of the fields are those of the stored attributes."""

    id: SummaryId
    source: SessionId
    successor: SessionId
    text: str
    model: str
    created_at: Timestamp
    first_seq: int
    last_seq: int


async def read_summary(store: TenantStore, successor: SessionId, summary: SummaryId) -> SummaryRecord | None:
    """Return the summary at the start of ``successor``, or None if that session has been deleted."""
    item = await store.table.get(keys.session_summary(store.tenant, successor, summary))
    return decode(SummaryRecord, item) if item is not None else None


def format_summary_message(record: SummaryRecord) -> str:
    """Return the text of the first message of a successor."""
    return f"{_PREFIX}{record.source}] {record.text}"


def parse_summary_message(message: str) -> str:
    """Return the summary in the first message of a successor. Return any other message unchanged."""
    return message.partition("] ")[2] if message.startswith(_PREFIX) else message
