"""Streams that can be followed: latency, throughput, memory, and what they cost at the table.

    python -m bench.stream [--requests N] [--events N] [--open N] [--seconds N] [--followers N]

1. From the provider's first token to the client's, over sockets: with the journal, without it, and of a chat completion.
2. Events per second of processor time with one reader, from the provider's deltas to the bytes of the response. The journal is
   written to a table in memory. The model writes each token only when the one before was read, as a real one does.
3. Memory that open streams have allocated (Python's count): with one token, and what each event adds. Threads that they started.
4. Table calls one behind the other before the model; units of a streamed second; dollars at list prices
   (``infra/costs/prices.py``); followers. The table is in memory, the time real.
"""

import argparse
import asyncio
import gc
import statistics
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Final

from bench import stream_costs, stream_latency
from bench.processes import silence_logs
from bench.stream_chats import Chats, Received, open_chats
from spass.journal.writer import FLUSH_SECONDS
from spass.testing import table

MIN_EVENTS: Final = 20_000
MAX_OPEN_KIB: Final = 59
TOKENS: Final = (1, 51)
"""Tokens of the open streams: the first number measures a stream without events, the difference its events."""
BURSTS: Final = 5
FIGURES: Final = sys.stdout  # the gateway in this process logs to standard output too, and is led away from it


async def throughput(events: int) -> None:
    async with open_chats() as chats:
        await chats.say("100 tokens, 0 a second")
        rates: list[float] = []
        for _ in range(BURSTS):
            began = time.process_time()
            received = await chats.say(f"{events} tokens, 0 a second")
            rates.append(received.events / (time.process_time() - began))
    rate = statistics.median(rates)
    said = "met" if rate >= MIN_EVENTS else "NOT met"
    print(f"events a second of processor time: {rate:,.0f} (to reach: {MIN_EVENTS:,}): {said}", file=FIGURES)


async def memory(streams: int) -> None:
    async with open_chats() as chats:
        await chats.say("10 tokens, 0 a second")
        await asyncio.gather(*(chats.say("10 tokens, 0 a second") for _ in range(50)))  # threads, caches
        threads = threading.active_count()
        small, large = [await grown_by(chats, streams, tokens) / streams for tokens in TOKENS]
        started = threading.active_count() - threads  # a thread that was started for a call does not end after it
    of_event = (large - small) / (TOKENS[1] - TOKENS[0])
    said = "met" if small / 1024 < MAX_OPEN_KIB else "NOT met"
    print(
        f"{streams} open streams: {small / 1024:.0f} KiB each beyond their events (to reach: {MAX_OPEN_KIB}): {said}; "
        f"{of_event:.0f} bytes an event; {started} more threads (to reach: 0): {'met' if started <= 0 else 'NOT met'}",
        file=FIGURES,
    )


async def grown_by(chats: Chats, streams: int, tokens: int) -> int:
    """Return the bytes that open streams with so many tokens allocate, without those of this bench and of the table."""
    chats.model.may_end.clear()
    gc.collect()
    tracemalloc.start()
    read = [Received() for _ in range(streams)]
    running = [asyncio.create_task(chats.say(f"{tokens} tokens, 0 a second", received=into)) for into in read]
    events = -1
    while True:  # until no stream has had an event for longer than the journal waits
        await asyncio.sleep(2 * FLUSH_SECONDS)
        if all(into.events for into in read) and events == sum(into.events for into in read):
            break
        events = sum(into.events for into in read)
    gc.collect()
    by_file = tracemalloc.take_snapshot().statistics("filename")
    allocated = sum(found.size for found in by_file if not _is_of_bench(found.traceback[0].filename))
    tracemalloc.stop()
    chats.model.may_end.set()
    await asyncio.gather(*running)
    return allocated


def _is_of_bench(file: str) -> bool:
    return file in (table.__file__, tracemalloc.__file__) or Path(file).parent == Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="streams of each kind for the latency (default 400)")
    parser.add_argument("--events", type=int, default=20_000, help="events of one stream for the throughput (default 20,000)")
    parser.add_argument("--open", type=int, default=1000, help="streams open at once (default 1,000)")
    parser.add_argument("--seconds", type=int, default=60, help="seconds of the streams whose units are counted (default 60)")
    parser.add_argument("--followers", type=int, default=20, help="followers of one of them (default 20)")
    options = parser.parse_args()
    stream_latency.measure(options.requests, 10)
    with silence_logs():
        asyncio.run(throughput(options.events))
        asyncio.run(memory(options.open))
        stream_costs.measure(options.seconds, options.followers, FIGURES)


if __name__ == "__main__":
    main()
