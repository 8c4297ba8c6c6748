"""Read the newest session of a chain of compactions."""

from typing import NamedTuple

from spass.core.ids import SessionId
from spass.sessions.session import Session, decode_session
from spass.store import keys
from spass.store.tenant_store import TenantStore


class ChainEnd(NamedTuple):
    """The newest session of a chain. ``head`` is None if the session is deleted without a trace."""

    id: SessionId
    head: Session | None


async def read_chain_end(store: TenantStore, session: SessionId) -> ChainEnd:
    """Return the newest session of the chain that continues with ``session``. A deleted member between two others keeps its
    links.

    Raises:
        StorageUnavailable: AWS throttled all retries or was unreachable.
    """
    while True:
        item = await store.table.get(keys.session_head(store.tenant, session))
        head = decode_session(item) if item is not None else None
        if head is None or head.successor_session_id is None:
            return ChainEnd(session, head)
        session = head.successor_session_id
