"""Deleting sessions of a chain, with concurrent calls to the table and the bucket. Faults of single calls are tested in
``tests/unit/sessions/test_deletion_chains.py``."""

import asyncio
import os
from collections.abc import Awaitable

import pytest

from spass.aws.clients import TenantStore
from spass.aws.keys import session_head
from spass.aws.leases import LEASE_SECONDS
from spass.core.errors import SessionArchived, SessionNotFound, SpassError
from spass.core.ids import SessionId
from spass.sessions import record
from spass.sessions.lineage import DeletedSession, read_chain
from spass.sessions.record import load_turns
from tests.integration.sessions.conftest import SessionHarness
from tests.unit.sessions.session_chains import AGENT, ChainBuilder, plain_turn

pytestmark = pytest.mark.anyio

ROUNDS = 200 if os.environ.get("SPASS_SOAK") else 8


@pytest.fixture
def chains(store: TenantStore) -> ChainBuilder:
    return ChainBuilder(store)


async def test_an_archived_session_with_a_deleted_successor_raises_not_found(
    harness: SessionHarness, chains: ChainBuilder
) -> None:
    source = await harness.session()
    await harness.turn(source, "hello").answer()
    successor = await chains.compact(source)
    await chains.delete(successor)
    with pytest.raises(SessionArchived) as archived:
        await harness.turn(source, "again").answer()
    assert archived.value.details == {"successor_session_id": successor}
    with pytest.raises(SessionNotFound):
        await harness.turn(successor, "again").answer()
    assert len(await harness.history(source)) == 4


@pytest.mark.parametrize("doomed", [0, 1, 2])
async def test_deleting_a_member_deletes_only_its_own_bodies(
    chains: ChainBuilder, doomed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "INLINE_BYTES", 10)
    members = await chains.chain(3, keep=2)
    said = {member: await chains.texts(member) for member in members if member != members[doomed]}
    await chains.delete(members[doomed])
    assert await chains.store.objects.list_keys(f"sessions/{members[doomed]}/") == []
    assert {member: await chains.texts(member) for member in said} == said
    first = members[1 if doomed == 0 else 0]
    chain = await read_chain(chains.scope, AGENT, first)
    assert [member.id for way in (chain.backward, chain.forward) for member in way if isinstance(member, DeletedSession)] == [
        members[doomed]
    ]


async def test_a_racing_delete_and_commit_are_each_whole_or_absent(chains: ChainBuilder) -> None:
    """The job's hold has expired without its knowledge, so the delete may begin."""
    for number in range(ROUNDS):
        session = await chains.session(plain_turn("hello"))
        source, live = await chains.hold(session), await load_turns(chains.store, session, 1)
        chains.now += LEASE_SECONDS + 1
        deleted, committed = await asyncio.gather(
            outcome(chains.delete(session), number % 3), outcome(chains.commit(source, live=live), number // 3 % 3)
        )
        assert deleted == "done"
        assert committed in ("done", "session_not_found")
        head = await chains.store.table.get(session_head(chains.store.tenant, session))
        if committed == "done":
            assert head is not None
            successor = SessionId(str(head["successor_session_id"]))
            assert await chains.texts(successor) == [f"[compaction summary from session {session}] what was said"]
            chain = await read_chain(chains.scope, AGENT, successor)
            assert chain.backward == [DeletedSession(id=session)]
        else:
            assert head is None
        assert await chains.texts(session) == []


async def outcome(doing: Awaitable[object], beats: int) -> str:
    for _ in range(beats):
        await asyncio.sleep(0.001)
    try:
        await doing
    except SpassError as error:
        return error.code
    return "done"
