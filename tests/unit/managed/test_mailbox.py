"""Messages are numbered without gaps, read oldest first within the bounds of a run, and listed page by page."""

import asyncio

import pytest

from spass.core.errors import AgentNotFound, AgentPaused, InvalidRequest
from spass.core.ids import ManagedAgentId, UserId
from spass.managed import mailbox
from spass.managed.mailbox import INLINE_BYTES
from spass.managed.records import Direction, MessageStatus, read_agent
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.managed.managed_store import ManagedStore

pytestmark = pytest.mark.anyio

LONG = "ä" * INLINE_BYTES


async def test_a_message_is_pending_and_is_listed_as_it_was_sent(managed: ManagedStore) -> None:
    agent = await managed.create()
    message = await managed.put(agent, " What is 2+2? ")
    page = await mailbox.page(managed.store, agent.id, None, 10)
    assert page.to_dict() == {
        "messages": [
            {
                "id": message.id,
                "seq": 1,
                "direction": "user_to_agent",
                "content": " What is 2+2? ",
                "status": "pending",
                "run_id": None,
                "created_at": "2027-01-15T08:00:00.000Z",
            }
        ],
        "next_cursor": None,
    }


async def test_a_long_content_is_an_object_and_reads_like_a_short_one(managed: ManagedStore) -> None:
    agent = await managed.create()
    for content in ("short", LONG, "x" * INLINE_BYTES):
        await managed.put(agent, content)
    assert len(managed.aws.bucket.keys) == 1
    assert [message[2] for message in await managed.messages(agent)] == ["short", LONG, "x" * INLINE_BYTES]
    pending = await mailbox.pending(managed.store, await managed.agent(agent))
    assert [message.content for message in pending] == ["short", LONG, "x" * INLINE_BYTES]


async def test_messages_that_race_are_numbered_without_gaps(managed: ManagedStore) -> None:
    agent = await managed.create()
    await asyncio.gather(*(managed.put(agent, str(number)) for number in range(8)))
    messages = await managed.messages(agent)
    assert [seq for seq, *_ in messages] == [*range(1, 9)]
    assert {message[2] for message in messages} == {str(number) for number in range(8)}


async def test_a_run_reads_the_oldest_fifty_messages(managed: ManagedStore) -> None:
    agent = await managed.create()
    for number in range(70):
        await managed.put(agent, str(number))
    pending = await mailbox.pending(managed.store, await managed.agent(agent))
    assert [message.content for message in pending] == [str(number) for number in range(50)]


async def test_a_run_reads_at_most_256_kib_but_always_one_message(managed: ManagedStore) -> None:
    agent = await managed.create()
    for size in (200, 56, 1, 256):
        await managed.put(agent, "x" * size * 1024)
    run = await managed.start(agent)
    for expected in ([200, 56], [1], [256]):
        pending = await mailbox.pending(managed.store, await managed.agent(agent))
        assert [len(message.content) // 1024 for message in pending] == expected
        assert await managed.finish(run, "read", pending)
        run = await managed.start(agent)
    assert await mailbox.pending(managed.store, await managed.agent(agent)) == ()


async def test_a_mailbox_without_pending_messages_is_not_queried(managed: ManagedStore) -> None:
    agent = await managed.create()
    for content in ("one", "two"):
        await managed.put(agent, content)
        run = await managed.start(agent)
        assert await managed.finish(run, "read", await mailbox.pending(managed.store, await managed.agent(agent)))
    found = await managed.agent(agent)
    with inject(FaultPlan()) as plan:
        assert await mailbox.pending(managed.store, found) == ()
    assert plan.calls == []
    await managed.put(agent, "three")
    assert (await managed.agent(agent)).pending == 1


async def test_a_paused_or_unknown_agent_takes_no_message(managed: ManagedStore) -> None:
    agent = await managed.create()
    read_before = await managed.agent(agent)
    await managed.pause(agent)
    for known in (read_before, await managed.agent(agent)):
        with pytest.raises(AgentPaused):
            await mailbox.put(managed.store, known, "late", managed.now)
    for owner, unknown in ((UserId("bob"), agent.id), (agent.owner, ManagedAgentId("agt_" + "0" * 26))):
        with pytest.raises(AgentNotFound):
            await read_agent(managed.store, owner, unknown)
    assert await managed.messages(agent) == []


async def test_a_cursor_belongs_to_its_mailbox(managed: ManagedStore) -> None:
    one, two = await managed.create(), await managed.create()
    for number in range(20):
        await managed.put(one, str(number))
    page = await mailbox.page(managed.store, one.id, None, 3)
    assert [message.seq for message in page.messages] == [1, 2, 3]
    rest = await mailbox.page(managed.store, one.id, page.next_cursor, 100)
    assert [message.seq for message in rest.messages] == [*range(4, 21)]
    assert rest.next_cursor is None
    with pytest.raises(InvalidRequest):
        await mailbox.page(managed.store, two.id, page.next_cursor, 3)


async def test_a_page_ends_at_four_mebibytes(managed: ManagedStore) -> None:
    agent = await managed.create()
    for _ in range(20):
        await managed.put(agent, "x" * mailbox.MAX_BYTES)
    page = await mailbox.page(managed.store, agent.id, None, 1000)
    assert 10 < len(page.messages) < 20
    assert len(page.to_json()) < 4 * 1024 * 1024
    rest = await mailbox.page(managed.store, agent.id, page.next_cursor, 1000)
    assert len(page.messages) + len(rest.messages) == 20


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE])
@pytest.mark.parametrize("at", range(3))
async def test_a_message_is_stored_once_although_a_call_failed(managed: ManagedStore, fault: Fault, at: int) -> None:
    agent = await managed.create()
    with inject(FaultPlan(fault, at)):
        await managed.put(agent, LONG)
    assert await managed.messages(agent) == [(1, Direction.USER_TO_AGENT, LONG, MessageStatus.PENDING, None)]
    assert (await managed.put(agent, "next")).seq == 2


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("at", range(3))
async def test_after_a_crash_a_message_is_whole_or_absent(managed: ManagedStore, fault: Fault, at: int) -> None:
    agent = await managed.create()
    with pytest.raises(Crash), inject(FaultPlan(fault, at)):
        await managed.put(agent, LONG)
    is_stored = (fault, at) == (Fault.CRASH_AFTER, 2)
    assert len(await managed.messages(agent)) == is_stored
    assert (await managed.put(agent, "next")).seq == 1 + is_stored
