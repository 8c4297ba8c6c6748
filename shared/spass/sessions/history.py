"""Read a session's history in pages, oldest message first, with the compacted messages."""

import re
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

from pydantic import Field, WithJsonSchema

from spass.core.ids import MessageId
from spass.core.messages import Json, Role
from spass.core.paging import PageSizeLimit, cursor_mismatch, decode_cursor, encode_cursor
from spass.core.time import Timestamp
from spass.models.responses import FunctionCall, TurnUsage
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, message_json
from spass.sessions.session import Session, read_session
from spass.store.bucket import ObjectMissing
from spass.store.keys import session_head
from spass.store.restored import check_restored
from spass.store.tenant_store import TenantStore
from spass.tenancy.response_model import Count, DateTime, DecimalText, JsonObject, NextCursor, ResponseModel

RichBlocks: TypeAlias = Annotated[
    list[JsonObject] | None, Field(description="Blocks for people: `diff`, `file_tree` and `file` (docs/workspaces.md).")
]

# A turn may have 350 KB in the table and megabytes in the bucket, so reading ahead is bounded.
_TURNS_PER_READ: Final = 16
# ``seq`` of the turn's first message and of the page's first message. A turn's key has room for nine digits.
_POSITION: Final = re.compile(r"[1-9][0-9]{0,8}:[1-9][0-9]{0,8}")


class MessageView(ResponseModel):
    """A message as a client sees it. `rich` are blocks for people, of a tool's result. `compacted_at` is null while the message
    is live. `usage` and `cost_usd` are those of the whole turn and stand in its last message; they are null in all others, and in
    turns that were recorded before they were stored."""

    id: MessageId
    seq: Count
    role: Annotated[Role, WithJsonSchema({"type": "string", "enum": ["user", "assistant", "tool"]})]
    content: str
    created_at: DateTime
    tool_calls: list[FunctionCall]
    tool_call_id: str | None
    rich: RichBlocks
    compacted_at: DateTime | None
    usage: TurnUsage | None
    cost_usd: DecimalText | None

    @classmethod
    def of(cls, turn: TurnRecord, stored: StoredMessage, rich: Sequence[Json], compacted_at: Timestamp | None) -> "MessageView":
        has_usage = stored is turn.answer and turn.cost_usd is not None
        return cls.model_validate(
            {
                **message_json(stored),
                "rich": [*rich] or None,
                "compacted_at": compacted_at,
                "usage": TurnUsage.model_validate(turn.usage, from_attributes=True) if has_usage else None,
                "cost_usd": turn.cost_usd if has_usage else None,
            }
        )


class HistoryPage(ResponseModel):
    """A page of a session's messages, oldest first."""

    messages: list[MessageView]
    next_cursor: NextCursor


async def read_history(store: TenantStore, session: Session, cursor: str | None, limit: int) -> HistoryPage:
    """Return at most ``limit`` messages from ``cursor`` on, and no more than fit into one answer.

    Raises:
        InvalidRequest: the cursor does not belong to this session's history.
        SessionNotFound: the session was deleted during the read.
        InternalError: a restore could not bring all of it back.
    """
    cursor_scope = f"messages|{store.tenant}|{session.user}|{session.id}"
    position = decode_cursor(cursor_scope, cursor, _POSITION) if cursor is not None else "1:1"
    turn_seq, seq = map(int, position.split(":"))
    messages: list[MessageView] = []
    room = PageSizeLimit()
    while turns := await _load_page(store, session, turn_seq):
        for turn in turns:
            rich = {run.call_id: run.rich for run in turn.tools}
            for stored in turn.messages:
                if stored.seq < seq:
                    continue
                compacted_at = session.archived_at if stored.seq < session.compacted_before else None
                message = MessageView.of(turn, stored, rich.get(stored.message.tool_call_id or "", ()), compacted_at)
                if len(messages) == limit or not room.add(message.to_json()):
                    return HistoryPage(
                        messages=messages, next_cursor=encode_cursor(cursor_scope, f"{turn.first_seq}:{stored.seq}")
                    )
                messages.append(message)
        turn_seq = turns[-1].next_seq
    return HistoryPage(messages=messages, next_cursor=None)


async def _load_page(store: TenantStore, session: Session, from_seq: int) -> list[TurnRecord]:
    """Return the next turns, starting with the one whose first message is ``from_seq``. Return none at the end of the session.

    Only the deletion of a session removes turns, one by one and in any order. So if a turn is missing, read the head.
    """
    if from_seq >= session.next_seq:
        return []
    try:
        turns = await load_turns(store, session.id, from_seq, limit=_TURNS_PER_READ)
    except ObjectMissing:
        await _check_whole(store, session)
        raise
    expected = [from_seq, *(turn.next_seq for turn in turns[:-1])]
    if [turn.first_seq for turn in turns] != expected:
        await _check_whole(store, session)
        raise cursor_mismatch()
    return turns


async def _check_whole(store: TenantStore, session: Session) -> None:
    """Raise the reason why a turn is missing: the session was deleted, or a restore could not bring the turn back."""
    await read_session(store, session.id, session.agent, session.user)
    await check_restored(store, session_head(store.tenant, session.id), "this session")
