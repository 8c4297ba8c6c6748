"""Streams of agents: events rendered per second of processor time, and the first token against a chat completion's.

    python -m bench.streams [--events N] [--requests N] [--rounds N]

The first part renders the events of one long run, in process, from the agent's events to the bytes of the response. The second
part streams the same answer of the same upstream through one gateway: as a chat completion, as an agent's chat and as a turn of a
session. The rounds alternate between them, and the added time is the difference of the medians.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from json import loads
from pathlib import Path
from typing import Final

from bench.load import CHAT, LoadProfile, Target, Work
from bench.processes import TOKEN, USER, emulated_aws, served, server, write_config
from spass.agents.render.events import EventWriter
from spass.agents.render.frames import FrameWriter
from spass.core.effects import ToolOutcome
from spass.core.events import Event, Token, ToolCallFinished, ToolCallStarted, TurnStarted
from spass.core.ids import RequestId
from spass.core.messages import Message, Role, ToolCall
from spass.journal.frames import Frame
from spass.web.sse import stream_response

MIN_EVENTS: Final = 20_000
"""Events per second of processor time that are wanted."""
MAX_ADDED_MS: Final = 1.0
TOKENS_PER_CALL: Final = 20
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": USER}
MESSAGE: Final = {"message": "What is two and two?", "stream": True}


def events(count: int) -> Iterator[Event]:
    """Yield the events of a run: tokens, and a tool call after every twenty."""
    call = ToolCall("call_1", "calculator", '{"expression": "2+2"}')
    message = Message(Role.TOOL, '{"expression":"2+2","result":4}', (), call.id)
    outcome = ToolOutcome(call, {"expression": "2+2"}, {"expression": "2+2", "result": 4}, message, 1)
    yield TurnStarted()
    for number in range(count - 1):
        match number % (TOKENS_PER_CALL + 2):
            case 0:
                yield ToolCallStarted(call)
            case 1:
                yield ToolCallFinished(outcome)
            case _:
                yield Token(" Piece of it.", 1 + number // (TOKENS_PER_CALL + 2))


async def rendered(count: int) -> float:
    """Return the processor seconds in which ``count`` events become bytes."""

    async def frames() -> AsyncGenerator[Frame, None]:
        writer = FrameWriter(EventWriter(RequestId("req_1"), "bench"))
        async for event in _to_async(events(count)):
            for frame in writer.write(event):
                yield frame

    began, size = time.process_time(), 0
    async for part in (await stream_response(frames(), RequestId("req_1"))).body_iterator:
        assert isinstance(part, bytes)
        size += part.count(b"\n\n")
    if size != count:
        raise SystemExit(f"{size} of {count} events were rendered")
    return time.process_time() - began


async def _to_async(items: Iterator[Event]) -> AsyncGenerator[Event, None]:
    for item in items:
        yield item


def first_tokens(requests: int, rounds: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(server("bench.upstream:upstream", {}))
        environment = stack.enter_context(emulated_aws()) | write_config(folder, upstream)
        gateway = Target("gateway", stack.enter_context(served("bench.gateway:app", os.environ | environment)), HEADERS)
        created = urllib.request.Request(
            f"{gateway.served.base}/a1/agents/bench/sessions", b"{}", HEADERS | {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(created) as answer:
            session = loads(answer.read())["id"]
        chat, turn = "/a1/agents/bench/chat", f"/a1/agents/bench/sessions/{session}/messages"
        works = [CHAT, Work("an agent's chat", chat, MESSAGE), Work("a session's turn", turn, MESSAGE)]
        for _ in range(rounds):
            for work in works:
                gateway.burst(LoadProfile(work is CHAT, 1, work), requests // rounds)
        medians = {kind.work.name: statistics.median(load.first_word) for kind, load in gateway.figures.items()}
    added = medians["an agent's chat"] - medians[CHAT.name]
    notes = {
        "an agent's chat": f", {added:+.2f} ms (wanted: {MAX_ADDED_MS:+.0f} at most)",
        "a session's turn": ", two table calls on the emulator included",
    }
    for name, median in medians.items():
        print(f"first token of {name}: {median:.2f} ms at the median{notes.get(name, '')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="events to render (default 100,000)")
    parser.add_argument("--requests", type=int, default=400, help="of each kind (default 400)")
    parser.add_argument("--rounds", type=int, default=10, help="in so many turns (default 10)")
    options = parser.parse_args()
    per_second = options.events / statistics.median(asyncio.run(rendered(options.events)) for _ in range(5))
    print(f"events rendered per second of processor time: {per_second:,.0f} (wanted: {MIN_EVENTS:,})")
    first_tokens(options.requests, options.rounds)


if __name__ == "__main__":
    main()
