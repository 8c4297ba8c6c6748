"""The notes of an operator as a client sees them."""

import re
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from spass.core.errors import OperatorNotFound
from spass.core.ids import Operator
from spass.core.paging import decode_cursor, fill_page
from spass.memory.notes import StoredNote
from spass.memory.state import OperatorState, read_state
from spass.store import keys
from spass.store.codec import decode
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item
from spass.tenancy.response_model import DateTime, NextCursor, ResponseModel

_POSITION: Final = re.compile(r"[0-9T:.Z-]{24}\|[0-9a-f]{64}")


class NoteView(ResponseModel):
    """A note of an operator. `ends` are the texts under which it is filed: the cause and the effect that it connects, if any."""

    key: str
    content: str
    ends: list[str]
    created_at: DateTime


class NotePage(ResponseModel):
    """A page of an operator's notes, oldest first. A note that is stored again becomes the newest."""

    notes: list[NoteView]
    next_cursor: NextCursor


async def count_notes(store: TenantStore, operator: Operator, generation: str) -> int:
    """Return the number of notes that the ``generation`` of the operator has."""
    return len(await _read_items(store, operator, generation))


async def page_notes(store: TenantStore, operator: Operator, cursor: str | None, limit: int) -> NotePage:
    """Return at most ``limit`` notes after ``cursor``, oldest first. The items are not sorted by time, so each page reads all of
    them, as a search does.

    Raises:
        OperatorNotFound: the operator never ran, or was forgotten.
        InvalidRequest: the cursor does not belong to this list.
    """
    state = await require_state(store, operator)
    scope = f"notes|{store.tenant}|{operator.user}|{operator.id}|{state.generation}"
    last = decode_cursor(scope, cursor, _POSITION) if cursor is not None else ""
    notes = [decode(StoredNote, item) for item in await _read_items(store, operator, state.generation)]
    page, next_cursor = await fill_page(scope, _views(notes, last), limit)
    return NotePage(notes=page, next_cursor=next_cursor)


async def _views(notes: Sequence[StoredNote], last: str) -> AsyncGenerator[tuple[str, NoteView], None]:
    """Yield the notes behind the position ``last``, oldest first."""
    for position, note in sorted({f"{note.created_at}|{note.digest}": note for note in notes}.items()):
        if position > last:
            yield position, NoteView(key=note.key, content=note.content, ends=[*note.ends], created_at=note.created_at)


async def require_state(store: TenantStore, operator: Operator) -> OperatorState:
    """Return what is stored of the operator.

    Raises:
        OperatorNotFound: it never ran, or was forgotten.
    """
    state = await read_state(store, operator)
    if state is None:
        raise OperatorNotFound(
            "You have no such operator. It exists from its first run on, and belongs to the user of SPASS-User-Id, or without"
            " that header to the token.",
            param="operator_id",
        )
    return state


async def _read_items(store: TenantStore, operator: Operator, generation: str) -> list[Item]:
    partition = keys.operator_partition(store.tenant, operator.user, operator.id)
    items = await store.table.query(partition, prefix=keys.NOTE_PREFIX)
    return [item for item in items if item["generation"] == generation]
