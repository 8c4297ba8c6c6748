"""Every change of an upload's record but its progress."""

from collections.abc import Mapping
from contextlib import suppress

from spass.aws import keys
from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.keys import Key
from spass.aws.leases import LeaseLost
from spass.aws.table import TTL, ConditionFailed
from spass.aws.writes import ITEM_ABSENT, Absent, Condition, Equals, OneOf, Update
from spass.core.ids import IndexId, UploadId
from spass.core.time import now, now_s
from spass.rag.ingest.lease import LEASE, Receiver, Refusal
from spass.rag.ingest.parts import first_errors
from spass.rag.ingest.plan import FilePlan
from spass.rag.ingest.publish import leave_window, republish_parts
from spass.rag.ingest.upload_record import (
    ACTIVE,
    KEEP_SECONDS,
    MAX_ERRORS,
    Status,
    UploadError,
    UploadRecord,
    read_record,
    record_of,
)
from spass.rag.ingest.uploaded_file import UploadedFile

_IS_ACTIVE = OneOf("status", list(ACTIVE))
_IS_STOPPED = Equals("status", Status.FAILED) & Equals("stopped", value=True)


async def lease_file(store: TenantStore, file: UploadedFile, receiver: Receiver) -> UploadRecord | Refusal:
    """Lease the upload of ``file`` to plan it; return it without a lease if it is planned.

    It is the upload whose form was used, or, if that has another file already (a form can be used twice) or there was none, one
    of the file's own. Each (key, revision) is one upload, however often its event arrives.
    """
    if file.form_upload is not None:
        waits = Equals("status", Status.WAITING) & Equals("key", file.key)
        leased = await _lease_file(store, file, file.form_upload, receiver, waits)
        if leased is not None:
            return leased
    return await _lease_file(store, file, file.own_upload, receiver, ITEM_ABSENT) or Refusal.ENDED


async def lease_upload(store: TenantStore, index: IndexId, upload: UploadId, receiver: Receiver) -> UploadRecord | Refusal:
    """Lease an upload whose file has arrived to plan it; return it without a lease if it is planned."""
    try:
        return await _lease(store, index, upload, receiver, {}, _leasable(receiver))
    except ConditionFailed as failure:
        return _not_leased(failure.item, receiver)


async def _lease_file(
    store: TenantStore, file: UploadedFile, upload: UploadId, receiver: Receiver, unused: Condition
) -> UploadRecord | Refusal | None:
    """Return None if the upload is that of another file."""
    changes: dict[str, Value] = {
        "index": file.index,
        "key": file.key,
        "revision": file.revision,
        "version": file.version,
        "filename": file.filename,
    }
    if file.sequencer:
        changes["sequencer"] = file.sequencer
    when = unused | (Equals("revision", file.revision) & _leasable(receiver))
    try:
        return await _lease(store, file.index, upload, receiver, changes, when)
    except ConditionFailed as failure:
        item = failure.item
        if item is None or (item.get("key"), item.get("revision")) != (file.key, file.revision):
            return None
        return _not_leased(item, receiver)


async def _lease(
    store: TenantStore, index: IndexId, upload: UploadId, receiver: Receiver, changes: Mapping[str, Value], when: Condition
) -> UploadRecord:
    second = now_s()
    lease: dict[str, Value] = {**receiver.lease(), "status": Status.RUNNING, "touched": second, TTL: second + KEEP_SECONDS}
    update = Update(
        keys.upload(store.tenant, index, upload),
        set={**changes, **lease},
        default={"created_at": now()},
        remove=("errors", "finished_at"),
        when=when,
    )
    return record_of(await store.table.write(update) or {})


def _leasable(receiver: Receiver) -> Condition:
    return (_IS_ACTIVE | _IS_STOPPED) & Absent("parts") & receiver.may_lease()


def _not_leased(item: Item | None, receiver: Receiver) -> UploadRecord | Refusal:
    record = record_of(item) if item else None
    if item is None or record is None or record.ended:
        return Refusal.ENDED
    return receiver.refusal(item) if record.parts is None else record


async def set_planned(
    store: TenantStore, record: UploadRecord, receiver: Receiver, size: int, plan: FilePlan, generation: str
) -> UploadRecord:
    """End the lease of a file of ``size`` bytes whose parts are put. It goes into the life ``generation`` of the index, if any.

    A file that is planned already, by a repetition whose first reply was lost or by another worker, stays as it is.

    Raises:
        LeaseLost: another worker has the upload, or it has ended.
    """
    parts = len(plan.parts)
    known: dict[str, Value] = {
        "bytes_total": size,
        "parts": parts,
        "published": 1 if parts == 1 else 0,
        "kind": plan.kind.value,
        "columns": list(plan.columns),
    }
    if generation:
        known["generation"] = generation
    update = Update(_key(store, record), set=known, remove=LEASE, when=_IS_ACTIVE & Equals("owner", receiver.owner))
    try:
        return record_of(await store.table.write(update) or {})
    except ConditionFailed as failure:
        found = record_of(failure.item) if failure.item else None
        if found is None or found.parts is None or not found.active:
            raise LeaseLost("Another worker has this upload.", retry_after=1) from None
        return found


async def set_status(store: TenantStore, record: UploadRecord, status: Status) -> None:
    """Show an active upload as queued or running."""
    with suppress(ConditionFailed):
        await store.table.write(Update(_key(store, record), set={"status": status}, when=_IS_ACTIVE))


async def restart(store: TenantStore, record: UploadRecord, *, working_on: int | None = None) -> UploadRecord:
    """Continue an upload that was stopped: send its parts again, but the one that the caller is ``working_on``. Their messages
    were dropped while it had failed.

    Raises:
        LeaseLost: it has ended meanwhile.
    """
    running: dict[str, Value] = {"status": Status.RUNNING, "touched": now_s()}
    restarted = Update(_key(store, record), set=running, remove=("errors", "finished_at"), when=_IS_STOPPED | _IS_ACTIVE)
    try:
        record = record_of(await store.table.write(restarted) or {})
        if (record.parts or 0) > 1:
            await republish_parts(store, record, skip=working_on)
        cleared = Update(_key(store, record), remove=("stopped", "failed_part"), when=_IS_ACTIVE)
        return record_of(await store.table.write(cleared) or {})
    except ConditionFailed:
        raise LeaseLost("The upload is not in work any more.", retry_after=1) from None


async def end_failed(
    store: TenantStore,
    record: UploadRecord,
    error: UploadError,
    *,
    may_pass: bool,
    part: int | None = None,
    when: Condition = _IS_ACTIVE,
) -> None:
    """Fail an active upload for good, or, if the error ``may_pass``, until its message or that of this ``part`` arrives again."""
    latest = await read_record(store, record.index, record.id)
    errors = (error, *await first_errors(store, latest))
    changes: dict[str, Value] = {"status": Status.FAILED, "finished_at": now(), TTL: now_s() + KEEP_SECONDS}
    changes["errors"] = [kept.attributes() for kept in errors[:MAX_ERRORS]]
    if may_pass:
        changes["stopped"] = True
    if may_pass and part is not None:
        changes["failed_part"] = part
    removed = tuple(name for name in (*LEASE, "stopped", "failed_part") if name not in changes)
    await leave_window(store, record)
    with suppress(ConditionFailed):
        await store.table.write(Update(_key(store, record), set=changes, remove=removed, when=when & _IS_ACTIVE))


async def end_done(store: TenantStore, record: UploadRecord) -> None:
    """End an upload all of whose parts are done."""
    changes: dict[str, Value] = {
        "status": Status.SUCCEEDED if record.ingested or not record.failed else Status.FAILED,
        "finished_at": now(),
        "bytes_done": record.bytes_total,
        "errors": [error.attributes() for error in await first_errors(store, record)],
        TTL: now_s() + KEEP_SECONDS,
    }
    when = _IS_ACTIVE & Equals("parts_done", record.parts)
    await leave_window(store, record)
    with suppress(ConditionFailed):
        await store.table.write(Update(_key(store, record), set=changes, remove=(*LEASE, "stopped", "failed_part"), when=when))


def _key(store: TenantStore, record: UploadRecord) -> Key:
    return keys.upload(store.tenant, record.index, record.id)
