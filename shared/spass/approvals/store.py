"""Store, read and list approvals."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from spass.approvals.record import (
    Approval,
    ApprovalStatus,
    StoredCall,
    call_object,
    decode_approval,
    encode_new,
    encode_shown,
)
from spass.approvals.responses import ApprovalPage, ApprovalView
from spass.core.errors import ApprovalNotFound, SessionBusy
from spass.core.ids import ApprovalId, UserId, id_pattern
from spass.core.json import dump_bytes
from spass.core.paging import decode_cursor, fill_page
from spass.core.tasks import map_concurrently, run_concurrently
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.table import TTL, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Check, Delete, Equals, Item, Put, Write

_INLINE_BYTES: Final = 350_000
"""Bytes of the largest call, with its preview, in an item. DynamoDB allows 400 KiB."""
_SHOWN_BYTES: Final = 300_000
"""Bytes of a preview and arguments in an item that gets a result of up to 64 KiB when it ends."""
_POSITION: Final = re.compile(id_pattern("apr"))
_ITEMS_PER_READ: Final = 25
_MOST_SKIPPED: Final = 1000
"""Approvals that do not match, after which a page ends early: each may have hundreds of kilobytes."""


class ApprovalWithCall(NamedTuple):
    """An approval and its call, which is None if the approval has ended, or if the object of a large call is gone."""

    approval: Approval
    call: StoredCall | None


async def put_approval(store: TenantStore, approval: Approval, call: StoredCall, turn_id: str) -> None:
    """Store a pending approval of the turn ``turn_id``, which holds the session. It does not depend on the end of the turn.

    Raises:
        SessionBusy: the turn has lost its session; nothing is stored.
        StorageUnavailable: whether it is stored is unknown.
    """
    shown, arguments, effect = encode_shown(approval), dump_bytes(call.arguments), dump_bytes(call.effect)
    inline = {"arguments": arguments} if len(shown) + len(arguments) <= _SHOWN_BYTES else {}
    is_large = not inline or len(shown) + len(arguments) + len(effect) > _INLINE_BYTES
    if is_large:
        body = dump_bytes({"arguments": call.arguments, "effect": call.effect})
        await store.objects.put(call_object(approval.id), body, transient=True)
    else:
        inline["effect"] = effect
    attributes = encode_new(replace(approval, is_large=is_large), shown, inline)
    key = keys.approval(store.tenant, approval.user, approval.id)
    writes: list[Write] = [
        Put(key, attributes, ITEM_ABSENT),
        Put(keys.session_approval(store.tenant, approval.session, approval.id), {"is_large": is_large, TTL: attributes[TTL]}),
        Check(keys.session_head(store.tenant, approval.session), Equals("hold.owner", turn_id)),
    ]
    try:
        await store.table.transact(writes, token=approval.id)
    except TransactionFailed:
        if await store.table.get(key) is None:  # else it is our own first attempt, whose reply was lost
            raise SessionBusy("Another request took this session over; the call was not stored.", retry_after=1) from None


async def read_approval(store: TenantStore, user: UserId, approval: ApprovalId) -> Approval:
    """Return an approval of ``user``.

    Raises:
        ApprovalNotFound: the user has no such approval.
    """
    return await _with_arguments(store, decode_approval(await _read_item(store, user, approval)))


async def read_with_call(store: TenantStore, user: UserId, approval: ApprovalId) -> ApprovalWithCall:
    """Return an approval of ``user`` with its call. Errors are those of ``read_approval``."""
    item = await _read_item(store, user, approval)
    found = decode_approval(item)
    if found.status is not ApprovalStatus.PENDING:
        return ApprovalWithCall(found, None)
    if not found.is_large:
        return ApprovalWithCall(found, StoredCall(found.arguments or {}, json.loads(str(item["effect"]))))
    call = await _read_object(store, found)
    return ApprovalWithCall(replace(found, arguments=call.arguments) if call is not None else found, call)


async def list_approvals(
    store: TenantStore,
    user: UserId,
    now: float,
    *,
    status: ApprovalStatus | None = None,
    session: str | None = None,
    cursor: str | None = None,
    limit: int,
) -> ApprovalPage:
    """Return at most ``limit`` approvals of ``user`` from ``cursor`` on, newest first. ``now`` is in seconds since the epoch.

    A page may have fewer entries than ``limit``, or none, although more follow.

    Raises:
        InvalidRequest: the cursor does not belong to this list.
    """
    scope = f"approvals|{store.tenant}|{user}|{status}|{session}"
    after = decode_cursor(scope, cursor, _POSITION) if cursor is not None else None
    views = _views(store, user, now, after, status, session)
    approvals, next_cursor = await fill_page(scope, views, limit, most_skipped=_MOST_SKIPPED)
    return ApprovalPage(approvals=approvals, next_cursor=next_cursor)


async def _views(
    store: TenantStore, user: UserId, now: float, after: str | None, status: ApprovalStatus | None, session: str | None
) -> AsyncGenerator[tuple[str, ApprovalView | None], None]:
    partition = keys.approvals_partition(store.tenant, user)
    async for items in store.table.pages(partition, after=after, size=_ITEMS_PER_READ, newest_first=True):
        found = list(map(decode_approval, items))
        wanted = [one for one in found if status in (None, one.status_at(now)) and session in (None, one.session)]
        whole = await map_concurrently(partial(_with_arguments, store), wanted, limit=_ITEMS_PER_READ)
        shown = {one.id: ApprovalView.of(one, now) for one in whole}
        for one in found:
            yield one.id, shown.get(one.id)


async def read_approvals(store: TenantStore, user: UserId, ids: Sequence[ApprovalId]) -> dict[ApprovalId, Approval]:
    """Return those of the approvals ``ids`` that exist, without the arguments of large calls. The reads are concurrent."""
    items = await asyncio.gather(*(store.table.get(keys.approval(store.tenant, user, approval)) for approval in ids))
    return {approval.id: approval for item in items if item is not None for approval in [decode_approval(item)]}


async def _read_item(store: TenantStore, user: UserId, approval: ApprovalId) -> Item:
    item = await store.table.get(keys.approval(store.tenant, user, approval))
    if item is None:
        raise ApprovalNotFound("You have no such approval.", param="approval_id")
    return item


async def _with_arguments(store: TenantStore, approval: Approval) -> Approval:
    """Return ``approval`` with the arguments of its object, if the item does not have them."""
    if approval.arguments is not None:
        return approval
    call = await _read_object(store, approval)
    return replace(approval, arguments=call.arguments) if call is not None else approval


async def _read_object(store: TenantStore, approval: Approval) -> StoredCall | None:
    """Return a large call, or None if the bucket's lifecycle has removed it."""
    try:
        stored: dict[str, Any] = json.loads(await store.objects.get(call_object(approval.id)))
    except ObjectMissing:
        return None
    return StoredCall(stored["arguments"], stored["effect"])


async def delete_approvals(store: TenantStore, user: UserId, items: Sequence[Item]) -> None:
    """Delete the approvals of ``user`` that ``items`` of a session name. A repetition does no harm.

    Raises:
        StorageUnavailable: the table or the bucket does not answer; some approvals may still exist.
    """
    named = [item for item in items if str(item["sk"]).startswith(keys.SESSION_APPROVAL_PREFIX)]
    if not named:
        return
    ids = {ApprovalId(str(item["sk"]).removeprefix(keys.SESSION_APPROVAL_PREFIX)): item for item in named}
    await run_concurrently([store.table.write(Delete(keys.approval(store.tenant, user, approval))) for approval in ids])
    if large := [call_object(approval) for approval, item in ids.items() if item["is_large"]]:
        await store.objects.delete(large)
