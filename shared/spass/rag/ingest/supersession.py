"""Of the objects put under one key the newest wins, in whatever order their events arrive."""

import hashlib
from collections.abc import Sequence

from spass.aws import keys
from spass.aws.attributes import Value
from spass.aws.clients import TenantStore
from spass.aws.keys import Key
from spass.aws.table import TTL, ConditionFailed
from spass.aws.writes import Absent, AtMost, Check, Condition, Update
from spass.core.errors import Conflict
from spass.core.ids import IndexId
from spass.core.time import now_s
from spass.rag.ingest.upload_record import KEEP_SECONDS, UploadRecord
from spass.rag.ingest.uploaded_file import UploadedFile


class Superseded(Conflict):
    """The event of a newer object under the upload's key has arrived."""

    code = "superseded"


async def supersede_older(store: TenantStore, file: UploadedFile) -> None:
    """From now on let no batch take effect of an object that was put under the key before ``file``. An event without a sequencer,
    or one that arrives after a later one, changes nothing."""
    if file.sequencer:
        newest: dict[str, Value] = {"newest": file.sequencer, TTL: now_s() + KEEP_SECONDS}
        try:
            await store.table.write(Update(_newest(store, file.index, file.key), set=newest, when=_none_after(file.sequencer)))
        except ConditionFailed:
            return


async def check_not_superseded(store: TenantStore, record: UploadRecord) -> None:
    """Check that no newer object is known under the key of the file.

    Raises:
        Superseded: the event of a newer object has arrived.
    """
    if record.sequencer:
        item = await store.table.get(_newest(store, record.index, record.key))
        if item is not None and str(item["newest"]) > record.sequencer:
            raise Superseded("A newer version of this file arrived before all of this one was ingested.")


def not_superseded(store: TenantStore, record: UploadRecord) -> Sequence[Check]:
    """Return the check that a transaction takes effect only while no newer object is known."""
    if not record.sequencer:
        return []
    return [Check(_newest(store, record.index, record.key), _none_after(record.sequencer))]


def _newest(store: TenantStore, index: IndexId, key: str) -> Key:
    return keys.upload_newest(store.tenant, index, hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest())


def _none_after(sequencer: str) -> Condition:
    """Return the condition that the newest known object is not later. None is known once the upload is forgotten."""
    return Absent("newest") | AtMost("newest", sequencer)
