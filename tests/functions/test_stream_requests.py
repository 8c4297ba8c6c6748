"""Requests for one stream: repeated, with another body, behind an event, and of others, for whom the stream does not exist."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pytest

from spass.core.messages import FinishReason, TokenUsage
from spass.models.errors import AttemptFailed
from spass.models.types import CallContext, ChatDelta, ChatRequest
from tests.functions.gateway import Gateway
from tests.functions.stream_workers import Response, Worker, event_id, virtual_time
from tests.stream_grammar import parse_events

CHAT: Final = "/c1/agents/plain/chat"
SESSIONS: Final = "/a1/agents/plain/sessions"
ABSENT_SESSION: Final = "ses_" + "0" * 26
WORDS: Final = [f"word{number} " for number in range(12)]


@dataclass
class World:
    """Three workers over one store."""

    gateway: Gateway
    loop: asyncio.AbstractEventLoop
    workers: list[Worker]

    @property
    def worker(self) -> Worker:
        return self.workers[0]

    async def chat(self, message_id: str, text: str = "Hi", **more: Any) -> Response:
        return await self.worker.send("POST", CHAT, body=chat_body(message_id, text), **more)


def chat_body(message_id: str, text: str = "Hi", **more: object) -> dict[str, object]:
    return {"message_id": message_id, "messages": [{"role": "user", "content": text}], **more}


async def speak(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
    for word in WORDS:
        await asyncio.sleep(0.4)
        yield ChatDelta(word)
    yield ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(1, 1))


@pytest.fixture
def world(gateway: Gateway) -> Iterator[World]:
    gateway.model.script = speak
    workers = [Worker.start(gateway.services.settings, gateway.model, gateway.aws) for _ in range(3)]
    with virtual_time() as loop:
        yield World(gateway, loop, workers)


@pytest.mark.parametrize("kind", ["a new session", "a named session", "an existing session", "a message with a key"])
def test_five_equal_requests_at_once_get_one_turn_and_five_streams(world: World, kind: str) -> None:
    async def check(number: int) -> None:
        random, asked = Random(f"{kind} {number}"), len(world.gateway.model.requests)
        path, body, headers = CHAT, chat_body(f"m-{number}"), {"Idempotency-Key": f"key-{number}"}
        if kind == "a named session":
            body["session_id"] = f"name-{number}"
        elif kind != "a new session":
            body["session_id"] = (await world.worker.send("POST", SESSIONS)).json["id"]
        if kind == "a message with a key":
            path, body = f"{SESSIONS}/{body['session_id']}/messages", {"message": "Hi", "stream": True}

        async def send() -> Response:
            await asyncio.sleep(random.choice([0.0, 0.0, 0.01, 1.0, 4.0]))
            return await random.choice(world.workers).send("POST", path, body=body, headers=headers)

        replies = await asyncio.gather(*(send() for _ in range(5)))
        events = parse_events(replies[0].body)
        assert [reply.events for reply in replies] == [replies[0].events] * 5
        assert len(world.gateway.model.requests) == asked + 1
        history = await world.worker.send("GET", f"{SESSIONS}/{events[-1]['session_id']}/messages")
        assert [message["content"] for message in history.json["messages"]] == ["Hi", "".join(WORDS)]

    async def check_all() -> None:
        for number in range(20):
            await check(number)
        sessions = [item for item in world.gateway.items() if item["sk"] == "HEAD" and "#SES#" in str(item["pk"])]
        assert len(sessions) == 20

    world.loop.run_until_complete(check_all())


def test_equal_requests_for_a_busy_session_are_all_refused_and_leave_no_stream(world: World) -> None:
    async def check() -> None:
        session = (await world.worker.send("POST", SESSIONS)).json["id"]
        running = asyncio.create_task(world.worker.send("POST", CHAT, body=chat_body("m-1", session_id=session)))
        await asyncio.sleep(1)
        other = chat_body("m-2", session_id=session)
        for refused in await asyncio.gather(*(world.workers[at % 3].send("POST", CHAT, body=other) for at in range(8))):
            error = refused.json["error"]
            assert (refused.status, error["code"], error["details"]) == (409, "session_busy", {"message_id": "m-1"})
        assert (await world.worker.send("GET", f"{CHAT}/m-2")).status == 404
        parse_events((await running).body)
        assert parse_events((await world.worker.send("POST", CHAT, body=other)).body)

    world.loop.run_until_complete(check())


def test_another_body_for_the_same_stream_is_refused_whatever_came_of_it(world: World) -> None:
    others = (chat_body("m-1", "Ho"), chat_body("m-1", model="small"), chat_body("m-1", session_id="name"))

    async def check_refused() -> None:
        for body in others:
            reply = await world.worker.send("POST", CHAT, body=body)
            assert (reply.status, reply.json["error"]["code"]) == (422, "idempotency_key_reused")

    async def check() -> None:
        world.gateway.model.script = [ChatDelta("It "), AttemptFailed("down")]
        assert parse_events((await world.chat("m-1")).body)[-1]["type"] == "error"
        await check_refused()
        world.gateway.model.script = speak
        running = asyncio.create_task(world.chat("m-1"))
        await asyncio.sleep(1)
        await check_refused()
        done = await running
        await check_refused()
        equal = dict(reversed(chat_body("m-1").items()))
        assert (await world.worker.send("POST", CHAT, body=equal)).events == done.events
        assert event_id(done.events[0]) == "2-1"
        sessions = await world.worker.send("GET", f"{CHAT}/m-1")
        assert sessions.events == done.events

    world.loop.run_until_complete(check())


def test_a_last_event_id_beyond_the_last_event_waits_for_more(world: World) -> None:
    async def check() -> None:
        running = asyncio.create_task(world.chat("m-1"))
        await asyncio.sleep(1)
        beyond, behind = await asyncio.gather(
            world.workers[1].send("GET", f"{CHAT}/m-1", after="1-9"), world.workers[2].send("GET", f"{CHAT}/m-1", after="1-999")
        )
        whole = await running
        assert beyond.events == whole.events[9:]
        assert behind.events == []
        for after in (event_id(whole.events[-1]), "1-999"):
            over = await world.worker.send("GET", f"{CHAT}/m-1", after=after)
            assert (over.status, over.body) == (204, b"")
        unknown = await world.worker.send("GET", f"{CHAT}/m-1", after="7-3")
        assert unknown.events == whole.events, "of another attempt: the newest from its start"
        other_digit = await world.worker.send("GET", f"{CHAT}/m-1", after="²-1")
        assert (other_digit.status, other_digit.json["error"]["param"]) == (400, "Last-Event-ID")

    world.loop.run_until_complete(check())


OTHERS: Final = {
    "another user": (CHAT, "demo-token", {"SPASS-User-Id": "bob"}),
    "a sibling tenant": (CHAT, "sibling-token", {}),
    "a foreign tenant": (CHAT, "other-token", {}),
    "another agent": ("/c1/agents/counting/chat", "demo-token", {}),
}


@pytest.mark.parametrize("who", OTHERS)
@pytest.mark.parametrize("state", ["running", "done"])
def test_for_others_a_stream_does_not_exist(world: World, who: str, state: str) -> None:
    path, token, headers = OTHERS[who]

    async def send(method: str, target: str, body: object = None) -> Response:
        return await world.workers[1].send(method, target, body=body, token=token, headers=headers)

    async def check() -> None:
        running = asyncio.create_task(world.worker.send("POST", CHAT, body=chat_body("mine", "private-word", session_id="name")))
        await asyncio.sleep(1 if state == "running" else 20)
        for method in ("GET", "DELETE"):
            theirs, absent = [await send(method, f"{path}/{name}") for name in ("mine", "absent")]
            assert (theirs.status, theirs.json["error"]) == (absent.status, absent.json["error"])
            assert (theirs.status, theirs.json["error"]["code"]) == (404, "stream_not_found")
        own = await send("POST", path, chat_body("mine", "their-word", session_id="name"))
        shown = [message.content for message in world.gateway.model.requests[-1].messages]
        assert (shown[-1], "private-word" in str(shown)) == ("their-word", False)
        (session, whole) = parse_events(own.body)[0]["session_id"], await running
        assert b'"finish_reason":"stop"' in whole.events[-1], "nobody stopped it"
        mine = parse_events(whole.body)[0]["session_id"]
        assert session != mine, "an equal name is another session"
        assert (await send("GET", f"{path}/mine")).events == own.events
        if who != "another agent":
            refused, absent = [await send("POST", path, chat_body("m-2", session_id=name)) for name in (mine, ABSENT_SESSION)]
            assert (refused.status, refused.json["error"]) == (absent.status, absent.json["error"])
            assert refused.json["error"]["code"] == "session_not_found"
        assert (await world.worker.send("GET", f"{CHAT}/mine")).events == whole.events

    world.loop.run_until_complete(check())
