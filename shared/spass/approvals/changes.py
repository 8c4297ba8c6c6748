"""The whole change of a call that waits, page by page, and the proof that a person has read it to its end.

The cursor of a page is made of the pages before it, and that of the page after the last change of what will run. So only a reader
of all pages gets it. A decision names it as ``seen`` if the preview does not show the whole change.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from spass.approvals.ending import decided
from spass.approvals.record import Approval, ApprovalStatus, StoredCall
from spass.approvals.responses import ChangePage, ShownChange
from spass.approvals.store import read_with_call
from spass.core.errors import PreviewNotSeen
from spass.core.ids import ApprovalId, UserId
from spass.core.json import dump_canonical
from spass.core.paging import PageSizeLimit, cursor_mismatch, decode_cursor, encode_cursor
from spass.store.tenant_store import TenantStore

_POSITION: Final = re.compile(r"[0-9]{1,5}\.[0-9a-f]{64}|[0-9a-f]{64}")


async def read_changes(
    store: TenantStore, user: UserId, approval_id: ApprovalId, now: float, *, cursor: str | None, limit: int
) -> ChangePage:
    """Return at most ``limit`` of the diffs of a call that waits at ``now`` (seconds since the epoch), from ``cursor`` on.

    Raises:
        ApprovalNotFound: the user has no such approval.
        ApprovalDecided: the call does not wait any more.
        InvalidRequest: the cursor does not belong to this list.
    """
    approval, call = await read_with_call(store, user, approval_id)
    status = approval.status_at(now)
    if status is not ApprovalStatus.PENDING or call is None:
        raise decided(status if call is None else ApprovalStatus.EXPIRED)
    scope, changes = _scope(store, approval), _changes(call)
    position = decode_cursor(scope, cursor, _POSITION) if cursor is not None else None
    end = _digest(call)
    if position == end:
        return ChangePage(changes=(), next_cursor=None)
    start = int(position.partition(".")[0]) if position is not None and "." in position else 0
    if position is not None and (not 0 < start < len(changes) or position != _position(changes, start)):
        raise cursor_mismatch()
    page: list[ShownChange] = []
    room = PageSizeLimit()
    for change in changes[start : start + limit]:
        shown = ShownChange.model_validate(change)
        if not room.add(shown.to_json()):
            break
        page.append(shown)
    following = start + len(page)
    if following < len(changes):
        return ChangePage(changes=tuple(page), next_cursor=encode_cursor(scope, _position(changes, following)))
    return ChangePage(changes=tuple(page), next_cursor=encode_cursor(scope, end) if _is_whole(changes) else None)


def check_seen(store: TenantStore, approval: Approval, call: StoredCall, seen: str | None) -> None:
    """Check that the preview of ``approval`` shows all that ``call`` does, or that ``seen`` is the last cursor of its changes.

    Raises:
        PreviewNotSeen: neither is the case.
    """
    if approval.is_shown_whole:
        return
    path = f"/a1/approvals/{approval.id}/changes"
    if not _is_whole(_changes(call)):
        raise PreviewNotSeen(
            "This call cannot be approved: an earlier release stored it without the whole preview. Deny it, and let the agent "
            "make it again."
        )
    if seen != encode_cursor(_scope(store, approval), _digest(call)):
        raise PreviewNotSeen(
            f"The preview does not show all that this call does. GET {path}, follow next_cursor until it is null, and send the "
            "last cursor as seen with the decision.",
            param="seen",
            details={"changes": path},
        )


def _scope(store: TenantStore, approval: Approval) -> str:
    return f"changes|{store.tenant}|{approval.user}|{approval.id}"


def _changes(call: StoredCall) -> Sequence[Mapping[str, Any]]:
    """Return the diffs of a change of a workspace. Other calls have none."""
    return cast("Sequence[Mapping[str, Any]]", call.effect.get("diffs", ()))


def _position(changes: Sequence[Mapping[str, Any]], start: int) -> str:
    """Return the position of a page that begins at ``start``. It is made of what the pages before it show: scopes are public, so
    a position that is only a number could be written without having read them."""
    return f"{start}.{hashlib.sha256(dump_canonical(changes[:start])).hexdigest()}"


def _is_whole(changes: Sequence[Mapping[str, Any]]) -> bool:
    return bool(changes) and not any(change["truncated"] for change in changes)


def _digest(call: StoredCall) -> str:
    """Return the SHA-256 (hex) of what runs when the call is approved, and of its diffs."""
    return hashlib.sha256(dump_canonical(call.effect)).hexdigest()
