"""Change the state of an upload: lease, plan, restart or end it, or stop it because a newer object of its key has arrived, in any
order of events. ``part_run`` stores its progress."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress

from spass.core.errors import Conflict
from spass.core.ids import IndexId, UploadId, random_suffix
from spass.core.time import now, now_s
from spass.rag.ingest.lease import LEASE, MessageLease
from spass.rag.ingest.parts import first_errors, release_share, republish_parts
from spass.rag.ingest.plan import FilePlan, UploadError
from spass.rag.ingest.upload_record import (
    ACTIVE,
    KEEP_SECONDS,
    STOP,
    Status,
    UploadRecord,
    encode_errors,
    read_record,
    record_of,
    upload_key,
)
from spass.rag.ingest.uploaded_file import UploadedFile, own_upload, uploaded_file
from spass.store import keys
from spass.store.bucket import UPLOADS_PREFIX
from spass.store.keys import Key
from spass.store.leases import LeaseLost
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Absent, AtMost, Check, Condition, Equals, Exists, OneOf, Update, Value

_IS_ACTIVE = OneOf("status", list(ACTIVE))
_IS_STOPPED = Equals("status", Status.FAILED) & Exists("stopped")


async def lease_file(store: TenantStore, file: UploadedFile, lease: MessageLease) -> UploadRecord | None:
    """Lease the upload of ``file`` in order to plan it. If it is planned or has ended already, return it without a lease.

    The upload is the one whose form was used. If the file was put without a form, or the form was used for another file before,
    create an upload for this file. Each (key, revision) is one upload, even if its event arrives several times.

    Raises:
        MessageDone, MessageRedelivered: another worker has leased the upload.
    """
    is_of_file = Equals("revision", file.revision) & _leasable(lease)
    if file.form_upload is not None:
        waits = Equals("status", Status.WAITING) & Equals("key", file.key)
        record = await _lease(store, file.index, file.form_upload, lease, waits | is_of_file, file)
        if record is not None:
            return record
    return await _lease(store, file.index, file.own_upload, lease, ITEM_ABSENT | is_of_file, file)


async def lease_upload(store: TenantStore, index: IndexId, upload: UploadId, lease: MessageLease) -> UploadRecord | None:
    """Lease an upload whose file has arrived, in order to plan it. If it is planned or has ended already, return it without a
    lease; if it does not exist, return None. Raise the same errors as ``lease_file``."""
    return await _lease(store, index, upload, lease, _leasable(lease))


async def _lease(
    store: TenantStore,
    index: IndexId,
    upload: UploadId,
    lease: MessageLease,
    when: Condition,
    file: UploadedFile | None = None,
) -> UploadRecord | None:
    """Lease an upload for ``file``, or for the file that it has. Return None if it does not exist or belongs to another file."""
    at = now_s()
    changes: dict[str, Value] = {**lease.attributes(), "status": Status.RUNNING, "touched": at, TTL: at + KEEP_SECONDS}
    if file is not None:
        names = ("index", "key", "revision", "version", "filename", *(("sequencer",) if file.sequencer else ()))
        changes |= {name: getattr(file, name) for name in names}
    update = Update(
        keys.upload(store.tenant, index, upload),
        set=changes,
        default={"created_at": now()},
        remove=("errors", "finished_at"),
        when=when,
    )
    try:
        return record_of(await store.table.write(update) or {})
    except ConditionFailed as failure:
        item = failure.item
        if item is None or (file is not None and (item.get("key"), item.get("revision")) != (file.key, file.revision)):
            return None
        record = record_of(item)
        if record.parts is None and not record.ended:
            raise lease.refusal(item) from None
        return record


def _leasable(lease: MessageLease) -> Condition:
    return (_IS_ACTIVE | _IS_STOPPED) & Absent("parts") & lease.may_lease()


async def set_planned(
    store: TenantStore, record: UploadRecord, lease: MessageLease, size: int, plan: FilePlan, generation: str
) -> UploadRecord:
    """Record the ``plan`` of a file of ``size`` bytes, after its parts were put, and release the lease.

    ``generation`` is the current generation of the index; it is empty if the index does not exist. If the upload is planned
    already (by another worker, or by this call when its first reply was lost), return it unchanged.

    Raises:
        LeaseLost: another worker has leased the upload, or it has ended.
    """
    parts = len(plan.parts)
    values: dict[str, Value] = {
        "bytes_total": size,
        "parts": parts,
        "published": 1 if parts == 1 else 0,
        "kind": plan.kind.value,
        "columns": list(plan.columns),
    }
    if generation:
        values["generation"] = generation
    update = Update(upload_key(store, record), set=values, remove=LEASE, when=_IS_ACTIVE & Equals("owner", lease.owner))
    try:
        return record_of(await store.table.write(update) or {})
    except ConditionFailed as failure:
        stored = record_of(failure.item) if failure.item else None
        if stored is None or stored.parts is None or not stored.active:
            raise LeaseLost("Another worker has this upload.", retry_after=1) from None
        return stored


async def set_status(store: TenantStore, record: UploadRecord, status: Status) -> None:
    """Set the status of an active upload to queued or running."""
    with suppress(ConditionFailed):
        await store.table.write(Update(upload_key(store, record), set={"status": status}, when=_IS_ACTIVE))


async def restart(store: TenantStore, record: UploadRecord, *, working_on: int | None = None) -> UploadRecord:
    """Continue an upload that was stopped. Send its parts again, except the part that the caller is ``working_on``, because
    workers dropped their messages while the upload was stopped.

    The stop is removed last: if this worker dies before, the next message restarts the upload again.

    Raises:
        LeaseLost: the upload has ended in the meantime, or was stopped a second time.
    """
    running: dict[str, Value] = {"status": Status.RUNNING, "touched": now_s()}
    is_this_stop = Equals("stopped", record.stopped)
    key = upload_key(store, record)
    try:
        restarted = Update(key, set=running, remove=("errors", "finished_at"), when=is_this_stop)
        record = record_of(await store.table.write(restarted) or {})
        if (record.parts or 0) > 1:
            await republish_parts(store, record, skip=working_on)
        return record_of(await store.table.write(Update(key, remove=STOP, when=is_this_stop)) or {})
    except ConditionFailed as failure:
        current = record_of(failure.item) if failure.item else None
        if current is not None and current.active and not current.stopped:
            return current  # another worker has restarted it, or the reply of the last write was lost
        raise LeaseLost("The upload is not active any more.", retry_after=1) from None


async def end_failed(
    store: TenantStore,
    record: UploadRecord,
    error: UploadError,
    *,
    is_temporary: bool,
    part: int | None = None,
    when: Condition = _IS_ACTIVE,
) -> None:
    """Fail an active upload. If the error ``is_temporary``, a message of the upload or of this ``part`` can restart it later."""
    latest = await read_record(store, record.index, record.id)
    changes: dict[str, Value] = {"status": Status.FAILED, "errors": encode_errors([error, *await first_errors(store, latest)])}
    if is_temporary:
        changes["stopped"] = random_suffix()
    if is_temporary and part is not None:
        changes["failed_part"] = part
    await _end(store, record, changes, when & _IS_ACTIVE)


async def end_done(store: TenantStore, record: UploadRecord) -> None:
    """End an upload after all its parts are done."""
    changes: dict[str, Value] = {
        "status": Status.SUCCEEDED if record.ingested or not record.failed else Status.FAILED,
        "errors": encode_errors(await first_errors(store, record)),
        "bytes_done": record.bytes_total,
    }
    await _end(store, record, changes, _IS_ACTIVE & Equals("parts_done", record.parts))


async def _end(store: TenantStore, record: UploadRecord, changes: dict[str, Value], when: Condition) -> None:
    changes |= {"finished_at": now(), TTL: now_s() + KEEP_SECONDS}
    removed = tuple(name for name in (*LEASE, *STOP) if name not in changes)
    await release_share(store, record)
    with suppress(ConditionFailed):
        await store.table.write(Update(upload_key(store, record), set=changes, remove=removed, when=when))


class Superseded(Conflict):
    """Raised if a newer object was put under the upload's key."""

    code = "superseded"


async def supersede_older(store: TenantStore, file: UploadedFile) -> None:
    """Stop the ingest of all objects that were put under the same key before ``file``: no further batch of them takes effect.

    If ``file`` has no sequencer, or the event of a newer object arrived first, change nothing.
    """
    if file.sequencer:
        newest: dict[str, Value] = {"newest": file.sequencer, "revision": file.revision, TTL: now_s() + KEEP_SECONDS}
        try:
            await store.table.write(Update(_newest_key(store, file.index, file.key), set=newest, when=_is_newest(file.sequencer)))
        except ConditionFailed:
            return


async def check_not_superseded(store: TenantStore, record: UploadRecord) -> None:
    """Check that the event of a newer object under the key of the file has not arrived. Raise ``Superseded`` if it has
    arrived."""
    if record.sequencer:
        item = await store.table.get(_newest_key(store, record.index, record.key))
        if item is not None and str(item["newest"]) > record.sequencer:
            newer = await _upload_of(store, record, str(item["revision"])) if "revision" in item else None
            name = f", the upload {newer}," if newer is not None else ""
            raise Superseded(f"A newer version of this file{name} arrived before all of this one was ingested.")


async def _upload_of(store: TenantStore, record: UploadRecord, revision: str) -> UploadId:
    """Return the upload of another ``revision`` of the file of ``record``: the upload of its form, or one of its own."""
    file = uploaded_file(f"{UPLOADS_PREFIX}{store.tenant}/{record.key}", None, revision)
    form = file.form_upload if file is not None else None
    if form is not None:
        item = await store.table.get(keys.upload(store.tenant, record.index, form))
        if item is not None and item.get("revision") == revision:
            return form
    return own_upload(record.key, revision)


def not_superseded(store: TenantStore, record: UploadRecord) -> Sequence[Check]:
    """Return a check for a transaction: it fails if the event of a newer object has arrived."""
    if not record.sequencer:
        return []
    return [Check(_newest_key(store, record.index, record.key), _is_newest(record.sequencer))]


def _newest_key(store: TenantStore, index: IndexId, key: str) -> Key:
    return keys.upload_newest(store.tenant, index, hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest())


def _is_newest(sequencer: str) -> Condition:
    """Return the condition that the newest known object is not later than ``sequencer``. The item may have expired."""
    return Absent("newest") | AtMost("newest", sequencer)
