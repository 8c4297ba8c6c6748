"""Choose the cut of a session: messages before it are summarised, messages after it are kept unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from spass.core.errors import NothingToCompact
from spass.core.ids import SessionId, SummaryId, new_id
from spass.core.messages import Role
from spass.sessions.record import StoredMessage
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
