"""Let the newest object of a key win, independently of the order in which the events of its objects arrive."""

import hashlib
from collections.abc import Sequence

from spass.core.errors import Conflict
from spass.core.ids import IndexId, UploadId
from spass.core.time import now_s
from spass.rag.ingest.upload_record import KEEP_SECONDS, UploadRecord
from spass.rag.ingest.uploaded_file import UploadedFile, own_upload, uploaded_file
from spass.store import keys
from spass.store.attributes import Value
from spass.store.keys import Key
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.uploads import UPLOADS_PREFIX
from spass.store.writes import Absent, AtMost, Check, Condition, Update


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
    """Check that the event of a newer object under the key of the file has not arrived.

    Raises:
        Superseded: it has arrived.
    """
    if record.sequencer:
        item = await store.table.get(_newest_key(store, record.index, record.key))
        if item is not None and str(item["newest"]) > record.sequencer:
            newer = await _upload_of(store, record, str(item["revision"])) if "revision" in item else None
            name = f", the upload {newer}," if newer is not None else ""
            raise Superseded(f"A newer version of this file{name} arrived before all of this one was ingested.")


async def _upload_of(store: TenantStore, record: UploadRecord, revision: str) -> UploadId:
    """Return the upload of another ``revision`` of the file of ``record``. It is that of the form, or one of its own."""
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
