"""An operator and its notes as a client sees them."""

import re
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.core.cursors import decode_cursor, encode_cursor
from spass.core.errors import OperatorNotFound
from spass.core.ids import OperatorId
from spass.core.page_size import PageSizeLimit
from spass.memory.notes import StoredNote, decode_note
from spass.memory.operator import Operator
from spass.memory.state import OperatorState, read_state
from spass.tenancy.response_model import Count, DateTime, JsonValue, NextCursor, ResponseModel, SessionIdText

_POSITION: Final = re.compile("[0-9a-f]{64}")
_NOTES_PER_READ: Final = 100


class OperatorView(ResponseModel):
    """An operator. `state` is what its last run left for the next one: the text that the model stored, or an object with the
    `input`, the `answer` and the time (`at`). It is null before the first run has ended. `notes` is their number."""

    operator_id: OperatorId
    session_id: SessionIdText
    state: JsonValue
    notes: Count
    updated_at: DateTime


class NoteView(ResponseModel):
    """A note of an operator. `ends` are the texts under which it is filed: the cause and the effect that it connects, if any."""

    key: str
    content: str
    ends: list[str]
    created_at: DateTime


class NotePage(ResponseModel):
    """A page of an operator's notes, in a fixed order."""

    notes: list[NoteView]
    next_cursor: NextCursor


async def view_operator(store: TenantStore, operator: Operator) -> OperatorView:
    """Return the operator with the number of its notes.

    Raises:
        OperatorNotFound: it never ran, or was forgotten.
        StorageUnavailable: AWS throttled all retries or was unreachable.
    """
    state = await _require_state(store, operator)
    partition = keys.operator_partition(store.tenant, operator.user, operator.id)
    items = await store.table.query(partition, prefix=keys.NOTE_PREFIX)
    return OperatorView(
        operator_id=operator.id,
        session_id=state.session,
        state=state.state,
        notes=sum(item["generation"] == state.generation for item in items),
        updated_at=state.updated_at,
    )


async def page_notes(store: TenantStore, operator: Operator, cursor: str | None, limit: int) -> NotePage:
    """Return at most ``limit`` notes from ``cursor`` on.

    Raises:
        OperatorNotFound: the operator never ran, or was forgotten.
        InvalidRequest: the cursor does not belong to this list.
        StorageUnavailable: AWS throttled all retries or was unreachable.
    """
    state = await _require_state(store, operator)
    scope = f"notes|{store.tenant}|{operator.user}|{operator.id}|{state.generation}"
    after = f"{keys.NOTE_PREFIX}{decode_cursor(scope, cursor, _POSITION)}" if cursor is not None else None
    page: list[NoteView] = []
    last = ""
    room = PageSizeLimit()
    partition = keys.operator_partition(store.tenant, operator.user, operator.id)
    while items := await store.table.query(partition, prefix=keys.NOTE_PREFIX, after=after, limit=_NOTES_PER_READ):
        for note in map(decode_note, items):
            if note.generation != state.generation:
                continue
            view = _view(note)
            if len(page) == limit or not room.add(view.to_json()):
                return NotePage(notes=page, next_cursor=encode_cursor(scope, last))
            page.append(view)
            last = note.digest
        after = str(items[-1]["sk"])
    return NotePage(notes=page, next_cursor=None)


async def _require_state(store: TenantStore, operator: Operator) -> OperatorState:
    state = await read_state(store, operator)
    if state is None:
        raise OperatorNotFound("You have no such operator. It exists from its first run on.", param="operator_id")
    return state


def _view(note: StoredNote) -> NoteView:
    return NoteView(key=note.key, content=note.content, ends=list(note.ends), created_at=note.created_at)
