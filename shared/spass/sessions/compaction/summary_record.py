"""A summary: as a model wrote it, as it is stored, and as the first message of a successor."""

from dataclasses import dataclass
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.codec import decode
from spass.core.ids import SessionId, SummaryId
from spass.core.time import Timestamp

_PREFIX: Final = "[compaction summary from session "


@dataclass(frozen=True, slots=True)
class Summary:
    """The text that a model wrote. ``model`` is its name in the catalogue."""

    text: str
    model: str


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A summary as it is stored with the session that starts with it. It covers the messages ``first_seq`` to ``last_seq`` of
    the source, both included. The names of the fields are those of the stored attributes."""

    id: SummaryId
    source: SessionId
    successor: SessionId
    text: str
    model: str
    created_at: Timestamp
    first_seq: int
    last_seq: int


async def read_summary(store: TenantStore, successor: SessionId, summary: SummaryId) -> SummaryRecord | None:
    """Return the summary that ``successor`` starts with, or None if that session has been deleted.

    Raises:
        StorageUnavailable: throttled or unreachable through all retries.
    """
    item = await store.table.get(keys.session_summary(store.tenant, successor, summary))
    return decode(SummaryRecord, item) if item is not None else None


def summary_message(record: SummaryRecord) -> str:
    """Return the first message of a successor."""
    return f"{_PREFIX}{record.source}] {record.text}"


def summary_text(message: str) -> str:
    """Return the summary in the first message of a successor."""
    return message.partition("] ")[2] if message.startswith(_PREFIX) else message
