"""Store summaries: one item per summary, in the partition of the session that starts with it."""

from typing import cast

from spass.aws import keys
from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.core.errors import SummaryFailed
from spass.core.ids import SessionId, SummaryId
from spass.core.json import encode_utf8
from spass.core.time import Timestamp
from spass.sessions.compaction.types import SummaryRecord
from spass.sessions.record import INLINE_BYTES


def storable_text(text: str) -> str:
    """Return ``text`` with unpaired surrogates replaced by question marks.

    Raises:
        SummaryFailed: it does not fit into an item.
    """
    encoded = encode_utf8(text)
    if len(encoded) > INLINE_BYTES:
        raise SummaryFailed("The model's summary is too large to be stored.")
    return encoded.decode()


def summary_attributes(record: SummaryRecord) -> dict[str, Value]:
    """Return the attributes of the item."""
    return {
        "id": record.id,
        "source": record.source,
        "successor": record.successor,
        "text": record.text,
        "model": record.model,
        "created_at": record.created_at,
        "first_seq": record.first_seq,
        "last_seq": record.last_seq,
    }


def decode_summary(item: Item) -> SummaryRecord:
    """Return the summary in ``item``."""
    return SummaryRecord(
        SummaryId(cast(str, item["id"])),
        SessionId(cast(str, item["source"])),
        SessionId(cast(str, item["successor"])),
        cast(str, item["text"]),
        cast(str, item["model"]),
        Timestamp(cast(str, item["created_at"])),
        cast(int, item["first_seq"]),
        cast(int, item["last_seq"]),
    )


async def read_summary(store: TenantStore, successor: SessionId, summary: SummaryId) -> SummaryRecord | None:
    """Return the summary that ``successor`` starts with, or None if that session has been deleted.

    Raises:
        StorageUnavailable: throttled or unreachable through all retries.
    """
    item = await store.table.get(keys.session_summary(store.tenant, successor, summary))
    return decode_summary(item) if item is not None else None
