"""Of the objects that were put under one key the newest wins, whatever order their events come in."""

import hashlib
from collections.abc import Sequence

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.keys import Key
from spass.aws.table import TTL, Check, Condition, ConditionFailed, Update
from spass.core.errors import Conflict
from spass.core.ids import IndexId
from spass.core.time import now_s
from spass.rag.ingest.record import KEEP_SECONDS, UploadRecord, updated


class Superseded(Conflict):
    """A newer object was put under the key of this upload, and its event came first."""

    code = "superseded"


def superseded() -> Superseded:
    return Superseded("A newer version of this file arrived before all of this one was ingested.")


async def note_newest(store: TenantStore, index: IndexId, key: str, sequencer: str) -> None:
    """From now on nothing takes effect of what was put under ``key`` before the event with this ``sequencer``. An event that
    does not say when it was, or comes behind a later one, changes nothing."""
    if not sequencer:
        return
    still = _not_after(sequencer)
    expression = "SET #newest = :this, #ttl = :ttl"
    values = {**still.values, ":ttl": now_s() + KEEP_SECONDS}
    write = Update(_newest(store, index, key), expression, {**still.names, "#ttl": TTL}, values, still)
    try:
        await updated(store, write)
    except ConditionFailed:
        return


async def check_newest(store: TenantStore, record: UploadRecord) -> None:
    """Raises:
    Superseded: a newer object than the upload's is known of.
    """
    if record.sequencer:
        item = await store.table.get(_newest(store, record.index, record.key))
        if item is not None and str(item["newest"]) > record.sequencer:
            raise superseded()


def while_newest(store: TenantStore, record: UploadRecord) -> Sequence[Check]:
    """What goes into a transaction that takes place only as long as no newer object is known of."""
    if not record.sequencer:
        return []
    return [Check(_newest(store, record.index, record.key), _not_after(record.sequencer))]


def _newest(store: TenantStore, index: IndexId, key: str) -> Key:
    return keys.upload_newest(store.tenant, index, hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest())


def _not_after(sequencer: str) -> Condition:
    """The newest that is known of is no later than this one. There need be none: it is forgotten with its upload."""
    return Condition("attribute_not_exists(#newest) OR #newest <= :this", {"#newest": "newest"}, {":this": sequencer})
