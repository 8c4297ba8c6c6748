"""Delete a session: one transaction hides it, then its name, its streams, its approvals and its items are removed. A repeated
delete continues an interrupted one: it finds the name in the head, the streams by their chunks, and the approvals by items of the
session, which are removed after them.

A deleted session can neither be compacted nor become a successor, so its place in a chain is final. If it is a
member of a chain, its head stays without any text, because its neighbours refer to it.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from spass.core.ids import AgentName, SessionId, UserId, random_suffix
from spass.core.tasks import run_concurrently
from spass.core.time import timestamp
from spass.journal.head import stream_digest
from spass.sessions.hold import hold_error, not_held_by_others
from spass.sessions.record import session_overflow_prefix
from spass.sessions.session import Session, decode_owned_session, decode_session, name_removal
from spass.store import keys
from spass.store.table import ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, Delete, Equals, Item, Update

_ITEMS_PER_BATCH: Final = 25
_NOT_IN_CHAIN: Final = Absent("parent_session_id") & Absent("successor_session_id")


async def delete_session(store: TenantStore, session: SessionId, agent: AgentName, user: UserId, now: float) -> None:
    """Delete the session with all its messages, its streams, its approvals and the summary that it starts with. Other sessions of
    its chain do not change.

    Raises:
        SessionNotFound, SessionAgentMismatch: the user has no such session with the agent. An interrupted delete may be repeated.
        SessionBusy, CompactionInProgress: the session is held.
        StorageUnavailable: the outcome is unknown; repeat the call to finish it.
    """
    head = keys.session_head(store.tenant, session)
    before = await store.table.get(head)
    await _mark(store, session, agent, user, now)
    if before is not None and (stream := _stream_removal(store, decode_session(before))) is not None:
        await _remove_reference(store, stream)
    await _remove_messages(store, session, user)
    try:
        await store.table.write(Delete(head, _NOT_IN_CHAIN))
    except ConditionFailed:
        await store.table.write(Update(head, set={"removed": True}, remove=("name",)))


async def _mark(store: TenantStore, session: SessionId, agent: AgentName, user: UserId, now: float) -> None:
    mark = Update(
        keys.session_head(store.tenant, session),
        set={"deleted_at": timestamp(now)},
        remove=("hold", "title"),
        when=Equals("user", user) & Equals("agent", agent) & Absent("deleted_at") & not_held_by_others(now),
    )
    unlist = Delete(keys.user_session(store.tenant, user, agent, session))
    token = random_suffix()
    try:
        await store.table.transact([mark, unlist], token=token)
    except TransactionFailed as failure:
        item = failure.failures.get(0)
        if item is None or not _is_unfinished_delete(item, agent, user):
            raise hold_error(decode_owned_session(item, agent, user), now) from None


def _is_unfinished_delete(item: Item, agent: AgentName, user: UserId) -> bool:
    """Return whether a delete by this user started and did not end. This is also true after our own first attempt, if its reply
    was lost."""
    return "deleted_at" in item and "removed" not in item and (item["user"], item["agent"]) == (user, agent)


def _references(store: TenantStore, session: SessionId, items: Sequence[Item]) -> list[Delete]:
    """Return the writes that remove what ``items`` of a session refer to: its name, and the heads of the streams with chunks
    here."""
    head = keys.session_head(store.tenant, session)
    heads = [decode_session(item) for item in items if item["sk"] == head.sk]
    names = [name_removal(store, found, found.name) for found in heads if found.name is not None]
    chunks = [chunk for item in items if (chunk := keys.parse_stream_chunk(str(item["sk"]))) is not None]
    # A chunk may be from an earlier stream, whose name another session's stream has now.
    is_here = Equals("session", session) | Equals("successor", session)
    streams = [Delete(keys.stream_head(store.tenant, digest), is_here) for digest in {chunk.digest for chunk in chunks}]
    return [*names, *streams]


def _stream_removal(store: TenantStore, session: Session) -> Delete | None:
    """Return the write that removes the head of the stream whose turn died while it held ``session``, perhaps before it had a
    chunk. The turn is the owner of both. Return None if there was no such turn."""
    hold = session.hold
    if hold is None or hold.message_id is None:
        return None
    digest = stream_digest(session.user, hold.agent or session.agent, hold.message_id)
    return Delete(keys.stream_head(store.tenant, digest), Equals("owner", hold.owner))


async def _remove_reference(store: TenantStore, removal: Delete) -> None:
    with suppress(ConditionFailed):  # another session has the name now, or another stream
        await store.table.write(removal)


async def _remove_messages(store: TenantStore, session: SessionId, user: UserId) -> None:
    """Delete all items in the session's partition except the head, the name, the streams and the approvals that they refer to,
    and all objects in its folder of the bucket, including bodies that were never committed.
    """
    from spass.approvals.store import delete_approvals

    partition = keys.session_partition(store.tenant, session)
    head = keys.session_head(store.tenant, session)
    after: str | None = None
    while items := await store.table.query(partition, after=after, limit=_ITEMS_PER_BATCH):
        await run_concurrently([_remove_reference(store, reference) for reference in _references(store, session, items)])
        await delete_approvals(store, user, items)
        found = [keys.Key(partition, str(item["sk"])) for item in items]
        await run_concurrently([store.table.write(Delete(key)) for key in found if key != head])
        after = found[-1].sk
    if bodies := await store.objects.list_keys(session_overflow_prefix(session)):
        await store.objects.delete(bodies)
