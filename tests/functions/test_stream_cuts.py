"""A stream that is cut at any event or byte, and resumed on any worker, is the uncut stream, byte for byte."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import Deltas, Script, ScriptedModel
from tests.functions.gateway import Gateway
from tests.functions.random_turns import SESSION_KINDS, RandomTurn, agent_of, install, script
from tests.functions.stream_workers import Response, Worker, event_id, virtual_time
from tests.sampling import SOAK
from tests.stream_grammar import parse_events

STREAMS = 200 if SOAK else 60
FIRST_EVENT_BYTES = 400
PAUSES = (0.0, 0.0, 0.0, 0.0, 0.05, 0.4, 1.3, 5.0)
LONG_HISTORY = [{"role": role, "content": "x" * 700} for _ in range(20) for role in ("user", "assistant")]


@dataclass
class World:
    """Three workers over one store, all of whose model is ``model``."""

    model: ScriptedModel
    workers: list[Worker]
    moved: int = 0
    repeated: int = 0
    resumed: int = 0
    events: int = 0


@dataclass
class Chat:
    """The requests of one stream. ``message_id`` is None while the client cannot know it."""

    path: str
    body: dict[str, Any]
    agent: str
    message_id: str | None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def following(self) -> str:
        return f"/c1/agents/{self.agent}/chat/{self.message_id}"


def in_time(turn: RandomTurn, random: Random) -> Script:
    """Return the script of ``turn`` with its texts in small pieces, and with pauses between them."""
    answers = script(turn)

    async def stream(request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        answer = answers(request, context)
        await asyncio.sleep(0.05)  # all requests for the stream are there before its first event
        if isinstance(answer, BaseException):
            raise answer
        deltas: Deltas = [ChatDelta(answer)] if isinstance(answer, str) else answer
        for delta in deltas:
            if isinstance(delta, BaseException):
                raise delta
            for at in range(0, max(1, len(delta.content)), 3):
                await asyncio.sleep(random.choice(PAUSES))
                yield ChatDelta(delta.content[at : at + 3])
            yield replace(delta, content="")

    return stream


def streamed_chat(turn: RandomTurn, random: Random, number: int) -> Chat:
    """Return a chat that opens a session: unnamed or with the client's name, short or with a history that is too long."""
    earlier = LONG_HISTORY if turn.characters else []
    body = {"message_id": f"m-{number}", "messages": [*earlier, {"role": "user", "content": "Go on."}]}
    name = {"session_id": f"client-{number}"} if random.random() < 0.5 else {}
    agent = agent_of(turn.kind)
    return Chat(f"/c1/agents/{agent}/chat", body | name, agent, f"m-{number}")


async def streamed_message(world: World, turn: RandomTurn, number: int) -> Chat:
    """Return a message to an existing session, whose stream is named by its first event."""
    agent = agent_of(turn.kind)
    session = (await world.workers[0].send("POST", f"/a1/agents/{agent}/sessions", body={})).json["id"]
    path = f"/a1/agents/{agent}/sessions/{session}/messages"
    return Chat(path, {"message": "Go on.", "stream": True}, agent, None, {"Idempotency-Key": f"key-{number}"})


async def read_in_parts(world: World, chat: Chat, random: Random) -> list[Response]:
    """Read a stream over connections that are cut at random bytes or after random times, each to a random worker. The first one
    sends the message; the others follow."""
    shortest = 1 if chat.message_id is not None else FIRST_EVENT_BYTES
    cut: int | None = random.choice([random.randint(shortest, 500), random.randint(shortest, 3000)])
    part = await random.choice(world.workers).send("POST", chat.path, body=chat.body, headers=chat.headers, cut=cut)
    parts, after = [part], None
    while not (part.events and is_end(part.events[-1])):
        if part.events:
            after = event_id(part.events[-1])
            chat.message_id = data(part.events[0]).get("message_id", chat.message_id)
        cut = random.choice([None, random.randint(1, 300), random.randint(1, 3000)])
        seconds = random.choice([None, 0.2, 3.0])
        part = await random.choice(world.workers).send("GET", chat.following, after=after, cut=cut, seconds=seconds)
        assert part.status in (0, 200), part
        parts.append(part)
    return [part for part in parts if part.status]


def data(event: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.partition(b"data: ")[2])
    return found


def is_done(events: list[bytes]) -> bool:
    return bool(data(events[-1])["type"] == "done")


def is_end(event: bytes) -> bool:
    return data(event).get("type") in ("done", "error")


async def check_attempt(world: World, chat: Chat, random: Random, attempt: int) -> list[bytes]:
    """Run an attempt, while two clients read it in parts. Then resume it behind each of its events. Return its events."""
    posted = random.choice(world.workers).send("POST", chat.path, body=chat.body, headers=chat.headers)
    reading = [read_in_parts(world, replace(chat), Random(random.random())) for _ in range(2)]
    whole, readers = await asyncio.gather(posted, asyncio.gather(*reading))
    parse_events(whole.body)
    ids = [event_id(event) for event in whole.events]
    assert ids == [f"{attempt}-{n}" for n in range(1, len(ids) + 1)]
    for parts in readers:
        assert [event for part in parts for event in part.events] == whole.events
        parse_events(*(part.body for part in parts))
        world.resumed += len(parts) - 1
    chat.message_id = data(whole.events[0])["message_id"]
    for number, last in enumerate(ids, 1):
        rest = await random.choice(world.workers).send("GET", chat.following, after=last)
        assert rest.events == whole.events[number:]
        assert (rest.status, bool(rest.body)) == ((200, True) if rest.events else (204, False))
    if is_done(whole.events):
        parts = await read_in_parts(world, chat, random)
        assert [event for part in parts for event in part.events] == whole.events
    world.events += len(ids)
    return whole.events


async def check_stream(world: World, seed: str, number: int) -> None:
    random = Random(seed)
    turn = RandomTurn.of(random, random.choice(SESSION_KINDS))
    chat = streamed_chat(turn, random, number) if random.random() < 0.75 else await streamed_message(world, turn, number)
    world.model.script = in_time(turn, random)
    events = await check_attempt(world, chat, random, 1)
    world.moved += sum(b'"status":"planning"' in event for event in events) - 1
    for attempt in (2, 3):
        if is_done(events):
            break
        world.repeated += 1
        turn = RandomTurn.of(random, turn.kind)
        world.model.script = in_time(turn, random)
        earlier, events = events, await check_attempt(world, chat, random, attempt)
        for last in (earlier[0], earlier[-1]):
            newest = await random.choice(world.workers).send("GET", chat.following, after=event_id(last))
            assert newest.events == events, "of an older attempt: the newest from its start"


@pytest.fixture
def world(gateway: Gateway, tmp_path: Path) -> Iterator[tuple[World, asyncio.AbstractEventLoop]]:
    """Three workers over a store in memory, in virtual time."""
    gateway = install(gateway, tmp_path / "kinds")
    settings = gateway.services.settings
    world = World(gateway.model, [Worker.start(settings, gateway.model, gateway.aws) for _ in range(3)])
    with virtual_time() as loop:
        yield world, loop


def test_a_stream_that_is_cut_anywhere_continues_on_any_worker(world: tuple[World, asyncio.AbstractEventLoop]) -> None:
    workers, loop = world
    for number in range(STREAMS):
        loop.run_until_complete(check_stream(workers, f"stream {number}", number))
    assert workers.events > 10 * STREAMS
    assert workers.resumed > STREAMS
    assert min(workers.moved, workers.repeated) > STREAMS // 20, (workers.moved, workers.repeated)
