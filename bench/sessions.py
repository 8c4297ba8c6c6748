"""Measure turns of sessions with a long history, and compactions, on an emulated AWS.

    python -m bench.sessions [--sessions N] [--turns N] [--model-seconds S]

Turns go over HTTP to a gateway whose model answers at once: to sessions with 1, 100 and 1,000 live turns, and to some with one
live turn behind which lie 10 and 1,000 compacted ones, in one compaction and in ten. All kinds take their turns in one run, in
shuffled order, so that whatever else the machine does hits them alike; each session gets the same number of turns. What the
table reads for one turn is computed from the items that it returned, as DynamoDB counts (4 KB are a unit); that and the processor
time are measured in this process, where the emulator and the model are not in it.

Then sessions are compacted by the route, the worker of the queue and the steps of infra/compaction.asl.json, called in this
process in the state machine's order: AWS calls, capacity units, transitions, and dollars by infra/costs/prices.py.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from bench.compactions import compactions
from bench.meter import Meter, record_calls
from bench.processes import TOKEN, USER, emulated_aws, server, silence_logs, write_config
from bench.session_data import HistoryShape, SessionWriter
from spass.core.ids import SessionId

LIVE: Final = (HistoryShape("1 live turn", 1), HistoryShape("100 live turns", 100), HistoryShape("1,000 live turns", 1000))
BEHIND: Final = (
    HistoryShape("1 live, 10 compacted", 1, 1, 10),
    HistoryShape("1 live, 1,000 compacted", 1, 1, 1000),
    HistoryShape("1 live, 1,000 in ten compactions", 1, 10, 100),
)
FLAT: Final = 1.1
BURSTS: Final = 3
IN_PROCESS: Final = 9  # turns of each kind
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": USER}
MESSAGE: Final = {"message": "Two and two?"}


@dataclass(slots=True)
class SessionProfile:
    """Sessions with one shape of history, and the measurements of their turns."""

    past: HistoryShape
    sessions: list[SessionId]
    milliseconds: list[float] = field(default_factory=list)
    burst_seconds: float = 0.0
    processor_ms: list[float] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)

    @property
    def p50(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def processor(self) -> float:
        """Return the processor time of a turn in milliseconds, without the emulator and the model."""
        return statistics.median(self.processor_ms)

    @property
    def at_once(self) -> float:
        """Return the turns per second when all sessions run a turn concurrently."""
        return BURSTS * len(self.sessions) / self.burst_seconds

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.milliseconds, n=100, method="inclusive")[98]


async def measure_turns(base: str, sessions: int, turns: int) -> list[SessionProfile]:
    """Return the measurements of all kinds: ``turns`` turns of each of their ``sessions`` sessions in sequence, then concurrent
    turns."""
    histories, order = SessionWriter(), random.Random(1)
    kinds = [SessionProfile(past, [await histories.session(past) for _ in range(sessions)]) for past in (*LIVE, *BEHIND)]
    async with httpx.AsyncClient(base_url=base, headers=HEADERS, timeout=60, trust_env=False) as client:
        for past in LIVE:  # not measured: connections, caches
            await turn(client, await histories.session(past))
        for _ in range(turns):
            for number in range(sessions):
                for kind in order.sample(kinds, len(kinds)):
                    kind.milliseconds.append(await turn(client, kind.sessions[number]))
        for number in range(BURSTS + 1):
            for kind in kinds:
                took = await burst(client, kind.sessions)
                kind.burst_seconds += took if number else 0.0  # the first one opens the connections
    await read(kinds, histories)
    return kinds


async def burst(client: httpx.AsyncClient, sessions: Sequence[SessionId]) -> float:
    """Run a turn of each session concurrently. Return the seconds until all have ended."""
    began = time.perf_counter()
    await asyncio.gather(*[turn(client, session) for session in sessions])
    return time.perf_counter() - began


async def turn(client: httpx.AsyncClient, session: SessionId) -> float:
    """Run one turn. Return its milliseconds."""
    began = time.perf_counter()
    answer = await client.post(f"/a1/agents/bench/sessions/{session}/messages", json=MESSAGE)
    took = (time.perf_counter() - began) * 1000
    if answer.raise_for_status().json()["session_id"] != session:
        raise SystemExit("a turn went to another session")
    return took


async def read(kinds: Sequence[SessionProfile], histories: SessionWriter) -> None:
    """Measure the table usage and processor time of a turn of each kind, in this process."""
    from bench.gateway import app

    transport = httpx.ASGITransport(app)
    with silence_logs():
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=HEADERS) as client:
            await turn(client, await histories.session(LIVE[0]))
            for kind, session in [(kind, await histories.session(kind.past)) for kind in kinds] * IN_PROCESS:
                began = time.process_time()
                with record_calls() as meter:
                    await turn(client, session)
                kind.meter = meter if not kind.processor_ms else kind.meter  # of the first turn: each makes the session longer
                kind.processor_ms.append((time.process_time() - began) * 1000)


def report(kinds: Sequence[SessionProfile]) -> None:
    print(
        f"{len(kinds[0].milliseconds)} turns of each kind, one after the other, and {len(kinds[0].sessions)} sessions at once\n"
    )
    head = f"{'session':34} {'turns/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'at once/s':>10} {'CPU ms':>7}"
    print(f"{head} {'calls':>6} {'read':>5} {'write':>6} units")
    for kind in kinds:
        rate, meter = 1000 / statistics.fmean(kind.milliseconds), kind.meter
        times = f"{rate:8.1f} {kind.p50:8.2f} {kind.p99:8.2f} {kind.at_once:10.1f} {kind.processor:7.1f}"
        print(f"{kind.past.name:34} {times} {len(meter.made):6} {meter.read_units:5.0f} {meter.write_units:6.0f}")
    named = {kind.past.name: kind for kind in kinds}
    one, hundred, thousand = (named[past.name] for past in LIVE)
    short, *long = (named[past.name] for past in BEHIND)
    print()
    for kind in long:
        ratio, units = kind.processor / short.processor, kind.meter.read_units / short.meter.read_units
        said = "met" if max(ratio, units) <= FLAT else "NOT met"
        print(f"{kind.past.name}, as parts of 10 compacted: {kind.p50 / short.p50:.2f} of the median time,")
        print(f"  {ratio:.2f} of the processor time and {units:.2f} of the read units (these to reach: {FLAT}): {said}")
    first, later = (hundred.processor - one.processor) / 99, (thousand.processor - hundred.processor) / 900
    print(
        f"each live turn takes {1000 * first:.0f} µs of the processor from 1 to 100, {1000 * later:.0f} from 100 to 1,000 of them"
    )
    print(f"1,000 live turns take {thousand.p50 / long[0].p50:.1f} times as long as 1 live turn behind 1,000 compacted ones")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=8, help="sessions of each kind (default 8)")
    parser.add_argument("--turns", type=int, default=12, help="turns of each session (default 12)")
    parser.add_argument("--model-seconds", type=float, default=5.0, help="a summary's time, below 25 (default 5)")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(server("bench.upstream:upstream", {}))
        summaries = stack.enter_context(server("bench.upstream:upstream", {"ANSWER_AFTER": str(options.model_seconds)}))
        environment = stack.enter_context(emulated_aws()) | write_config(folder, upstream, summaries=summaries)
        os.environ |= environment
        base = stack.enter_context(server("bench.gateway:app", environment))
        report(asyncio.run(measure_turns(base, options.sessions, options.turns)))
        asyncio.run(compactions(options.model_seconds))


if __name__ == "__main__":
    main()
