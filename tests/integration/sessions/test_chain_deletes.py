"""Delete sessions of a compaction chain while other calls run.

``tests/unit/sessions/test_deletion_chains.py`` tests the faults of single AWS calls.
"""

import asyncio
from collections.abc import Awaitable

import pytest

from spass.core.errors import SessionArchived, SessionNotFound, SpassError
from spass.core.ids import SessionId
from spass.sessions import record
from spass.sessions.lineage import DeletedSession, read_chain
from spass.sessions.record import load_turns
from spass.store.keys import session_head
from spass.store.leases import LEASE_SECONDS
from spass.store.overflow import Overflow
from spass.store.tenant_store import TenantStore
from tests.integration.sessions.conftest import SessionHarness
from tests.sampling import SOAK
from tests.unit.sessions.session_chains import AGENT, ChainBuilder, plain_turn

pytestmark = pytest.mark.anyio

ROUNDS = 200 if SOAK else 8


@pytest.fixture
def chains(store: TenantStore) -> ChainBuilder:
    return ChainBuilder(store)


async def test_an_archived_session_still_names_its_deleted_successor(harness: SessionHarness, chains: ChainBuilder) -> None:
    source = await harness.session()
    await harness.turn(source, "hello").answer()
    successor = await chains.compact(source)
    await chains.delete(successor)
    with pytest.raises(SessionArchived) as error:
        await harness.turn(source, "again").answer()
    assert error.value.details == {"successor_session_id": successor}
    with pytest.raises(SessionNotFound):
        await harness.turn(successor, "again").answer()
    assert len(await harness.history(source)) == 4, "the refused turn adds no messages"


@pytest.mark.parametrize("target", [0, 1, 2])
async def test_a_delete_in_a_chain_deletes_only_the_bodies_of_its_session(
    chains: ChainBuilder, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    members = await chains.chain(3, keep=2)
    texts = {member: await chains.texts(member) for member in members if member != members[target]}
    await chains.delete(members[target])
    assert await chains.store.objects.list_keys(f"sessions/{members[target]}/") == []
    assert {member: await chains.texts(member) for member in texts} == texts
    first = members[1 if target == 0 else 0]
    chain = await read_chain(chains.scope, AGENT, first)
    others = (*chain.backward, *chain.forward)
    assert [member.id for member in others if isinstance(member, DeletedSession)] == [members[target]]


async def test_a_concurrent_delete_and_commit_each_take_effect_completely_or_not_at_all(chains: ChainBuilder) -> None:
    """The job commits after its hold has expired. The delete cannot begin before that."""
    for number in range(ROUNDS):
        session = await chains.session(plain_turn("hello"))
        source, turns = await chains.hold(session), await load_turns(chains.store, session, 1)
        chains.now += LEASE_SECONDS + 1
        delete_outcome, commit_outcome = await asyncio.gather(
            run_after(chains.delete(session), number % 3), run_after(chains.commit(source, live=turns), number // 3 % 3)
        )
        assert delete_outcome == "done"
        assert commit_outcome in ("done", "session_not_found")
        head = await chains.store.table.get(session_head(chains.store.tenant, session))
        if commit_outcome == "done":
            assert head is not None
            successor = SessionId(str(head["successor_session_id"]))
            assert await chains.texts(successor) == [f"[compaction summary from session {session}] what was said"]
            chain = await read_chain(chains.scope, AGENT, successor)
            assert chain.backward == [DeletedSession(id=session)]
        else:
            assert head is None
        assert await chains.texts(session) == []


async def run_after(operation: Awaitable[object], milliseconds: int) -> str:
    """Await ``operation`` after a delay. Return "done" or the code of its error."""
    await asyncio.sleep(milliseconds / 1000)
    try:
        await operation
    except SpassError as error:
        return error.code
    return "done"
