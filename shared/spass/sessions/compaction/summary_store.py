"""Read summaries, and check that they fit into an item. Each is one item in the partition of the session that starts with it."""

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.codec import decode
from spass.core.errors import SummaryFailed
from spass.core.ids import SessionId, SummaryId
from spass.core.json import encode_utf8
from spass.sessions.compaction.types import SummaryRecord
from spass.sessions.record import INLINE_BYTES


def storable_text(text: str) -> str:
    """Return ``text`` with unpaired surrogates replaced by question marks.

    Raises:
        SummaryFailed: the text does not fit into an item.
    """
    encoded = encode_utf8(text)
    if len(encoded) > INLINE_BYTES:
        raise SummaryFailed("The model's summary is too large to be stored.")
    return encoded.decode()


async def read_summary(store: TenantStore, successor: SessionId, summary: SummaryId) -> SummaryRecord | None:
    """Return the summary that ``successor`` starts with, or None if that session has been deleted.

    Raises:
        StorageUnavailable: throttled or unreachable through all retries.
    """
    item = await store.table.get(keys.session_summary(store.tenant, successor, summary))
    return decode(SummaryRecord, item) if item is not None else None
