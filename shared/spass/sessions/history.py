"""A session's history, page by page: every message it ever had, oldest first."""

import json
from dataclasses import dataclass
from typing import Final

from spass.aws.clients import TenantStore
from spass.aws.objects import ObjectMissing
from spass.core.cursors import decode_cursor, encode_cursor
from spass.core.errors import SessionNotFound
from spass.core.messages import Json
from spass.sessions.record import TurnRecord, load_turns
from spass.sessions.session import Session

PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page ends when its messages weigh this much, but holds one at least."""

# A turn may be 350 KB in the table and megabytes in the bucket: what is read ahead of the page's end is bounded.
_TURNS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Messages as the wire has them, and the cursor of the next page if there is one."""

    messages: list[dict[str, Json]]
    next_cursor: str | None


async def read_history(store: TenantStore, session: Session, cursor: str | None, limit: int) -> HistoryPage:
    """At most ``limit`` messages from ``cursor`` on.

    Raises:
        InvalidRequest: the cursor is not one of this session's history.
        SessionNotFound: the session was deleted as we read.
        StorageUnavailable: throttled or unreachable through all retries.
    """
    scope = f"messages|{store.tenant}|{session.user}|{session.id}"
    turn_seq, seq = (int(part) for part in decode_cursor(scope, cursor).split(":")) if cursor is not None else (1, 1)
    messages: list[dict[str, Json]] = []
    size = 0
    while turns := await _turns(store, session, turn_seq):
        for turn in turns:
            for stored in turn.messages:
                if stored.seq < seq:
                    continue
                message = stored.wire(session.archived_at if stored.seq < session.compacted_before else None)
                size += len(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
                if len(messages) == limit or (messages and size > PAGE_BYTES):
                    return HistoryPage(messages, encode_cursor(scope, f"{turn.first_seq}:{stored.seq}"))
                messages.append(message)
        turn_seq = turns[-1].next_seq
    return HistoryPage(messages, None)


async def _turns(store: TenantStore, session: Session, from_seq: int) -> list[TurnRecord]:
    if from_seq >= session.next_seq:
        return []
    try:
        return await load_turns(store, session.id, from_seq, limit=_TURNS_AT_ONCE)
    except ObjectMissing:
        raise SessionNotFound("You have no such session.") from None
