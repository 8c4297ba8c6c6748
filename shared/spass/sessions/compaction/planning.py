"""Where a session is cut: what stands before goes into the summary, what stands behind is kept word for word."""

from collections.abc import Sequence

from spass.core.errors import NothingToCompact
from spass.core.messages import Role
from spass.sessions.compaction.types import CompactionPlan
from spass.sessions.record import StoredMessage
from spass.sessions.session import Session


def plan_compaction(session: Session, live: Sequence[StoredMessage]) -> CompactionPlan:
    """How ``session``, whose live messages are all of ``live``, is compacted; errors as ``first_kept_seq``."""
    follows = session.parent_session_id is not None
    return CompactionPlan.new(session.id, first_kept_seq(live, session.compact_keep_last_n, summarised=follows))


def first_kept_seq(live: Sequence[StoredMessage], keep_last: int, *, summarised: bool) -> int:
    """The ``seq`` of the first message that is kept; one behind the last, if none is.

    At least the last ``keep_last`` of the ``live`` messages are kept. The cut moves earlier to where a user speaks, so that no
    tool call loses its result and no question its answer. ``summarised``: the first message is an earlier compaction's summary,
    which is never kept but goes into the new one.

    Raises:
        NothingToCompact: nothing would be summarised but an earlier summary.
    """
    first = 1 if summarised else 0
    cut = len(live) - keep_last
    while first < cut < len(live) and live[cut].message.role is not Role.USER:
        cut -= 1
    if cut <= first:
        raise NothingToCompact(
            f"This session keeps its last {keep_last} messages, and has no older turn that is not summarised yet.",
            details={"live_message_count": len(live), "compact_keep_last_n": keep_last},
        )
    return live[cut].seq if cut < len(live) else live[-1].seq + 1
