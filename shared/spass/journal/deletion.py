"""Remove a stream whose session was deleted while it ended."""

from contextlib import suppress

from spass.core.errors import StorageUnavailable
from spass.journal.head import StreamHead
from spass.store import keys
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Equals


async def remove_if_session_is_deleted(store: TenantStore, head: StreamHead) -> None:
    """Remove what the attempt ``head`` wrote for a session that is deleted. Call this after its last write.

    A failed turn no longer holds its session, so the deletion may have ended before that write. A deletion that begins later
    finds all chunks itself. If the table does not answer, they expire after a day.
    """
    with suppress(StorageUnavailable):
        for session in dict.fromkeys((head.session, head.last_session)):
            item = await store.table.get(keys.session_head(store.tenant, session))
            if item is None or "deleted_at" in item:
                partition = keys.session_partition(store.tenant, session)
                chunks = await store.table.query(partition, prefix=keys.stream_chunk_prefix(head.digest, head.attempt))
                await store.table.delete(chunks)
                with suppress(ConditionFailed):  # another attempt has begun
                    await store.table.write(Delete(keys.stream_head(store.tenant, head.digest), Equals("owner", head.owner)))
