"""Define a summary and its stored record, and convert it to and from the first message of a successor."""

from dataclasses import dataclass
from typing import Final

from spass.core.ids import SessionId, SummaryId
from spass.core.time import Timestamp
from spass.store import keys
from spass.store.codec import decode
from spass.store.tenant_store import TenantStore

_PREFIX: Final = "[compaction summary from session "


@dataclass(frozen=True, slots=True)
class Summary:
    """The text that a model wrote. ``model`` is its name in the catalogue."""

    text: str
    model: str


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A stored summary. It replaces the messages ``first_seq`` to ``last_seq`` (both included) of the source session. It is
    stored with the successor session. The names of the fields are those of the stored attributes."""

    id: SummaryId
    source: SessionId
    successor: SessionId
    text: str
    model: str
    created_at: Timestamp
    first_seq: int
    last_seq: int


async def read_summary(store: TenantStore, successor: SessionId, summary: SummaryId) -> SummaryRecord | None:
    """Return the summary at the start of ``successor``, or None if that session has been deleted.

    Raises:
        StorageUnavailable: AWS throttled all retries or was unreachable.
    """
    item = await store.table.get(keys.session_summary(store.tenant, successor, summary))
    return decode(SummaryRecord, item) if item is not None else None


def format_summary_message(record: SummaryRecord) -> str:
    """Return the text of the first message of a successor."""
    return f"{_PREFIX}{record.source}] {record.text}"


def parse_summary_message(message: str) -> str:
    """Return the summary in the first message of a successor. Return any other message unchanged."""
    return message.partition("] ")[2] if message.startswith(_PREFIX) else message
