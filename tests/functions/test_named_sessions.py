"""Chats in sessions that the client names, with a history of its own, and streams that a compaction moves. Time is virtual."""

import asyncio
from collections.abc import AsyncGenerator
from random import Random
from typing import Any, Final

import pytest

from spass.core.messages import FinishReason, TokenUsage
from spass.models.errors import BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import in_turn
from tests.simulated.chats import AGENT, Answer, Chats
from tests.stream_grammar import Event, of_type, parse_events, receive

pytestmark = pytest.mark.anyio

ENTRIES: Final = (
    {"role": "user", "content": "How warm is it in Rome?"},
    {"role": "tool", "content": '{"celsius": 31}', "tool_call_id": "call_7"},
    {"role": "assistant", "content": "31 degrees."},
)
IMPORTED: Final = (
    ("user", "How warm is it in Rome?"),
    ("user", 'Result of the call call_7: {"celsius": 31}'),
    ("assistant", "31 degrees."),
)
OTHER_USER: Final = {"spass-user-id": "eve"}
SESSIONS: Final = f"/a1/agents/{AGENT}/sessions"


def body(message_id: str, session: str | None = "notes", *, entries: Any = ENTRIES) -> dict[str, Any]:
    name = {} if session is None else {"session_id": session}
    return {"message_id": message_id, "messages": [*entries, {"role": "user", "content": f"{message_id}?"}], **name}


async def speak(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
    for word in ("It ", "is ", "hot."):
        await asyncio.sleep(1)
        yield ChatDelta(word)
    yield ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))


def done_of(answer: Answer) -> Event:
    (done,) = of_type(parse_events(answer.body), "done")
    return done


async def sessions_of(chats: Chats, **more: Any) -> list[Event]:
    """Return the user's sessions, newest first."""
    sessions: list[Event] = (await chats.send("GET", SESSIONS, **more)).json["sessions"]
    return sessions


async def history(chats: Chats, session: str, **more: Any) -> list[tuple[str, str]]:
    answer = await chats.send("GET", f"{SESSIONS}/{session}/messages", **more)
    return [(message["role"], message["content"]) for message in answer.json["messages"]]


def turn(message_id: str, text: str = "It is hot.") -> list[tuple[str, str]]:
    return [("user", f"{message_id}?"), ("assistant", text)]


async def compacted(chats: Chats, message_id: str, session: str | None = "notes") -> Event:
    """Send a chat whose provider rejects the conversation as too long, and return the end of its stream."""
    chats.model.script = in_turn([BackendContextLength("Too long.", status=400), "A summary.", "Short."])
    done = done_of(await chats.post(body(message_id, session)))
    assert done["compaction"]["successor_session_id"] == done["session_id"]
    return done


@pytest.mark.parametrize("seed", range(10))
async def test_five_first_uses_of_a_name_at_once_create_one_session(chats: Chats, seed: int) -> None:
    chats.model.script = speak
    random = Random(seed)

    async def use(message_id: str) -> Answer:
        await asyncio.sleep(random.choice([0.0, 0.001, 0.01, 0.02]))
        return await chats.post(body(message_id))

    names = [f"m-{number}" for number in range(5)]
    answers = dict(zip(names, await asyncio.gather(*map(use, names)), strict=True))
    (winner,) = (name for name, answer in answers.items() if answer.status == 200)
    for name in names:
        if name != winner:
            error = answers[name].json["error"]
            assert (answers[name].status, error["code"], error["details"]["message_id"]) == (409, "session_busy", winner)
            assert (await chats.follow(name)).status == 404, "a refused request leaves no stream"
    (session,) = await sessions_of(chats)
    assert (session["title"], session["id"]) == ("notes", done_of(answers[winner])["session_id"])
    assert await history(chats, session["id"]) == [*IMPORTED, *turn(winner)]
    later = [name for name in names if name != winner]
    for name in later:
        assert done_of(await chats.post(body(name)))["session_id"] == session["id"]
    expected = [message for name in (winner, *later) for message in turn(name)]
    assert await history(chats, session["id"]) == [*IMPORTED, *expected], "only a new session imports the entries"
    assert len(await sessions_of(chats)) == 1


@pytest.mark.parametrize("session", [None, "notes"])
async def test_a_chat_gives_its_new_session_a_title_and_leaves_that_of_an_existing_one(chats: Chats, session: str | None) -> None:
    chats.model.script = speak
    done = done_of(await chats.post({**body("m-1", session), "title": "The weather"}))
    await chats.post({**body("m-2", done["session_id"]), "title": "Another title"})
    assert [(one["id"], one["title"]) for one in await sessions_of(chats)] == [(done["session_id"], "The weather")]


async def test_after_a_deletion_the_name_creates_a_new_session(chats: Chats) -> None:
    chats.model.script = speak
    first = done_of(await chats.post(body("m-1")))["session_id"]
    assert (await chats.send("DELETE", f"{SESSIONS}/{first}")).json == {"deleted": True}
    assert (await chats.follow("m-1")).status == 404
    second = done_of(await chats.post(body("m-2", entries=ENTRIES[:1])))["session_id"]
    assert second != first
    assert await history(chats, second) == [*IMPORTED[:1], *turn("m-2")]
    repeated = done_of(await chats.post(body("m-1")))
    assert repeated["session_id"] == second, "the name of the stream is free, too"
    assert await history(chats, second) == [*IMPORTED[:1], *turn("m-2"), *turn("m-1")]
    assert [session["id"] for session in await sessions_of(chats)] == [second]


async def test_after_a_compaction_the_name_continues_at_the_successor(chats: Chats) -> None:
    chats.model.script = speak
    first = done_of(await chats.post(body("m-1")))["session_id"]
    for number in range(2, 6):
        await chats.post(body(f"m-{number}"))
    moved = await compacted(chats, "m-6")
    assert moved["compaction"]["source_session_id"] == first
    chats.model.script = speak
    for number, wanted in enumerate(("notes", first, moved["session_id"]), 7):
        done = done_of(await chats.post(body(f"m-{number}", wanted)))
        assert done["session_id"] == moved["session_id"], "the name and both ids continue in the newest session"
    expected = [*turn("m-6", "Short."), *turn("m-7"), *turn("m-8"), *turn("m-9")]
    assert (await history(chats, moved["session_id"]))[-8:] == expected
    assert {session["id"] for session in await sessions_of(chats)} == {first, moved["session_id"]}


async def test_another_users_equal_name_is_another_session(chats: Chats) -> None:
    chats.model.script = speak
    mine = done_of(await chats.post(body("m-1")))
    assert (await chats.follow("m-1", headers=OTHER_USER)).status == 404
    other = done_of(await chats.post(body("m-1", entries=()), headers=OTHER_USER))
    assert other["session_id"] != mine["session_id"]
    assert await history(chats, other["session_id"], headers=OTHER_USER) == turn("m-1")
    assert await history(chats, mine["session_id"]) == [*IMPORTED, *turn("m-1")]
    for headers, done in ((None, mine), (OTHER_USER, other)):
        assert [session["id"] for session in await sessions_of(chats, headers=headers)] == [done["session_id"]]
    refused = await chats.post(body("m-2", mine["session_id"]), headers=OTHER_USER)
    assert (refused.status, refused.json["error"]["code"]) == (404, "session_not_found")
    assert (await chats.follow("m-2", headers=OTHER_USER)).status == 404


@pytest.mark.parametrize("session", [None, "notes"])
async def test_imported_entries_open_a_new_session_in_order_and_are_ignored_afterwards(chats: Chats, session: str | None) -> None:
    chats.model.script = speak
    done = done_of(await chats.post(body("m-1", session)))
    assert done["message"]["seq"] == 5
    again = done_of(await chats.post(body("m-2", done["session_id"], entries=[{"role": "user", "content": "Ignored."}])))
    assert again["message"]["seq"] == 7
    assert await history(chats, done["session_id"]) == [*IMPORTED, *turn("m-1"), *turn("m-2")]
    for request in chats.model.requests:
        shown = [message.content for message in request.messages]
        assert any("celsius" in text for text in shown)
        assert not any("Ignored." in text for text in shown)


async def test_a_stream_that_a_compaction_moves_is_followed_across_the_move(chats: Chats) -> None:
    chats.model.script = speak
    source = done_of(await chats.post(body("m-1")))["session_id"]
    for number in range(2, 6):
        await chats.post(body(f"m-{number}"))
    rounds = 0

    async def overflow(request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        nonlocal rounds
        rounds += 1
        await asyncio.sleep(2)
        if rounds == 1:
            raise BackendContextLength("Too long.", status=400)
        async for delta in speak(request, context):
            yield delta

    chats.model.script = overflow
    posting = asyncio.create_task(chats.post(body("moved")))
    await asyncio.sleep(1)
    before = asyncio.create_task(chats.follow("moved"))
    await asyncio.sleep(8)
    successor = (await sessions_of(chats))[0]["id"]
    assert successor != source
    shown = {id_: (await chats.send("GET", f"{SESSIONS}/{id_}")).json["active_turn"] for id_ in (source, successor)}
    assert shown == {source: None, successor: {"message_id": "moved"}}
    during = asyncio.create_task(chats.follow("moved"))
    whole = await posting
    events = parse_events(whole.body)
    assert [event["session_id"] for event in events if event.get("status") == "planning"] == [source, successor]
    assert [(await before).body, (await during).body, (await chats.follow("moved")).body] == [whole.body] * 3
    sent = receive(whole.body).sent
    for at, event in enumerate(sent[:-1], 1):
        resumed = await chats.follow("moved", headers={"last-event-id": str(event.id)})
        assert list(receive(resumed.body).sent) == list(sent[at:])
    assert (await chats.follow("moved", headers={"last-event-id": str(sent[-1].id)})).status == 204
