"""The lineage of each member of a chain shows the whole chain."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spass.core import paging as pages
from spass.core.errors import SessionAgentMismatch, SessionNotFound, UserIdRequired
from spass.core.ids import AgentName, SessionId, TenantId, UserId
from spass.core.messages import Json
from spass.sessions.lineage import read_chain
from spass.sessions.session import SessionView
from spass.store import keys
from spass.store.writes import Delete
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from tests.unit.sessions.session_chains import AGENT, ChainBuilder, memory_store, plain_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws() -> Iterator[MemoryAws]:
    with memory_store() as aws:
        yield aws


@pytest.fixture
def chains(aws: MemoryAws) -> ChainBuilder:
    return ChainBuilder(aws.for_tenant(TenantId("demo")))


async def read_lineage(chains: ChainBuilder, session: SessionId, *, max_members: int = 100) -> dict[str, Json]:
    return (await read_chain(chains.scope, AGENT, session, max_members=max_members)).to_dict()


def ids(members: Json) -> list[str]:
    """Return the ids of the members, with a mark for deleted ones."""
    assert isinstance(members, list)
    shown = []
    for member in members:
        assert isinstance(member, dict)
        if member.get("deleted"):
            assert member == {"id": member["id"], "deleted": True}
        shown.append(f"{member['id']} deleted" if member.get("deleted") else str(member["id"]))
    return shown


def texts(answer: dict[str, Json]) -> list[str]:
    summaries = answer["summaries"]
    assert isinstance(summaries, list)
    return [str(summary["text"]) for summary in summaries if isinstance(summary, dict)]


async def test_the_lineage_of_a_session_outside_a_chain_is_empty(chains: ChainBuilder) -> None:
    session = await chains.session(plain_turn("hello"))
    assert await read_lineage(chains, session) == {"session_id": session, "backward": [], "forward": [], "summaries": []}


@pytest.mark.parametrize("at", range(4))
async def test_each_member_shows_the_chain_in_both_directions_nearest_first(chains: ChainBuilder, at: int) -> None:
    members = await chains.chain(4, keep=2)
    answer = await read_lineage(chains, members[at])
    assert answer == {
        "session_id": members[at],
        "backward": [SessionView.of(await chains.head(member)).to_dict() for member in reversed(members[:at])],
        "forward": [SessionView.of(await chains.head(member)).to_dict() for member in members[at + 1 :]],
        "summaries": answer["summaries"],
    }
    assert texts(answer) == ["summary 1", "summary 2", "summary 3"]


async def test_a_summary_names_its_sessions_and_its_range_of_messages(chains: ChainBuilder) -> None:
    source = await chains.session(plain_turn("one"), plain_turn("two"), plain_turn("three"))
    successor = await chains.compact(source, "they counted", keep=2)
    (summary,) = (await read_chain(chains.scope, AGENT, source)).summaries
    assert summary.to_dict() == {
        "id": (await chains.head(successor)).summary_id,
        "source_session_id": source,
        "successor_session_id": successor,
        "text": "they counted",
        "model": "scripted",
        "created_at": (await chains.head(successor)).created_at,
        "first_seq": 1,
        "last_seq": 4,
    }


@pytest.mark.parametrize(
    ("deleted", "summaries"),
    [
        ([0], ["summary 1", "summary 2", "summary 3"]),
        ([1], ["summary 2", "summary 3"]),
        ([1, 2], ["summary 3"]),
        ([3], ["summary 1", "summary 2"]),
        ([0, 1, 3], ["summary 2"]),
    ],
)
async def test_a_deleted_member_is_listed_and_the_chain_continues_after_it(
    chains: ChainBuilder, deleted: list[int], summaries: list[str]
) -> None:
    members = await chains.chain(4)
    shown = [f"{member} deleted" if at in deleted else member for at, member in enumerate(members)]
    for at in deleted:
        await chains.delete(members[at])
    for at, member in enumerate(members):
        if at in deleted:
            with pytest.raises(SessionNotFound):
                await read_lineage(chains, member)
            continue
        answer = await read_lineage(chains, member)
        assert ids(answer["backward"]) == shown[:at][::-1]
        assert ids(answer["forward"]) == shown[at + 1 :]
        assert texts(answer) == summaries
        assert "truncated" not in answer


async def test_a_chain_ends_at_a_member_without_a_head(chains: ChainBuilder) -> None:
    members = await chains.chain(4)
    await chains.store.table.write(Delete(keys.session_head(chains.store.tenant, members[1])))
    answer = await read_lineage(chains, members[2])
    assert ids(answer["backward"]) == [f"{members[1]} deleted"]
    assert ids(answer["forward"]) == [members[3]]
    assert ids((await read_lineage(chains, members[0]))["forward"]) == [f"{members[1]} deleted"]


async def test_the_lineage_is_hidden_from_other_users_agents_and_tenants(chains: ChainBuilder, aws: MemoryAws) -> None:
    members = await chains.chain(2)
    for other in (ChainBuilder(chains.store, user=UserId("ben")), ChainBuilder(aws.for_tenant(TenantId("other")))):
        for member in members:
            with pytest.raises(SessionNotFound):
                await read_lineage(other, member)
    with pytest.raises(SessionAgentMismatch):
        await read_chain(chains.scope, AgentName("researcher"), members[0])
    without_user = replace(chains.scope, caller=replace(chains.scope.caller, user=None))
    with pytest.raises(UserIdRequired):
        await read_chain(without_user, AGENT, members[0])


async def test_a_long_chain_shows_its_nearest_members_and_is_marked_truncated(chains: ChainBuilder) -> None:
    members = await chains.chain(6)
    answer = await read_lineage(chains, members[3], max_members=2)
    assert ids(answer["backward"]) == [members[2], members[1]]
    assert ids(answer["forward"]) == [members[4], members[5]]
    assert texts(answer) == [f"summary {n}" for n in range(1, 6)], "the summary at the start of each shown member"
    assert answer["truncated"] is True
    assert "truncated" not in await read_lineage(chains, members[3], max_members=3)


async def test_the_newest_summaries_are_shown_if_not_all_fit(chains: ChainBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [await chains.session()]
    for number in range(4):
        await chains.say(members[-1], plain_turn(f"question {number}"))
        members.append(await chains.compact(members[-1], f"{number} " + "ü" * 1000))
    monkeypatch.setattr(pages, "PAGE_BYTES", 8_000)
    answer = await read_lineage(chains, members[1])
    assert [text[0] for text in texts(answer)] == ["2", "3"]
    assert len(ids(answer["backward"]) + ids(answer["forward"])) == 4
    assert answer["truncated"] is True


async def test_a_lineage_reads_each_head_and_each_summary_once_and_consistently(chains: ChainBuilder) -> None:
    members = await chains.chain(5)
    with inject(FaultPlan()) as plan:
        await read_lineage(chains, members[2])
    assert [call.operation for call in plan.calls] == ["GetItem"] * (5 + 4)
    assert all(call.parameters["consistent"] is True for call in plan.calls)
