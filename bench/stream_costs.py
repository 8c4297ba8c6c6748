"""Measure the calls and units of the table that a stream uses, their price, and the delay and price of followers."""

import asyncio
import json
import random
import statistics
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final, TextIO, TypeVar

from bench.calls import Recorder
from bench.meter import Meter, record_calls
from bench.stream_chats import SESSIONS, Chats, Received, open_chats
from infra.costs.prices import READ_UNIT, WRITE_UNIT, ResourceUsage
from infra.routes import ROUTES
from spass.store.invocation import PendingCall
from spass.testing.faults import inject

T = TypeVar("T")

RATES: Final = (20, 50, 100)
"""Tokens a second."""
MAX_WRITE_UNITS: Final = 1.1
MAX_ROUNDS: Final = 3
TURN_SECONDS: Final = 20
TURNS: Final = 1_000_000
FOLLOWED_RATE: Final = 50
_CALL_SECONDS: Final = 0.03
_MIB_IN_GB: Final = 1024


async def stream(chats: Chats, rate: int, seconds: int, live: Received, message_id: str | None = None) -> Meter:
    """Stream for ``seconds`` at ``rate`` tokens a second, in a new session. Return the calls of the turn."""
    session = await create_session(chats)
    with record_calls() as meter:
        order = f"{rate * seconds} tokens, {rate} a second"
        await chats.say(order, session=session, message_id=message_id, received=live, with_text=True)
    return meter


async def create_session(chats: Chats) -> str:
    answer = await chats.request("POST", SESSIONS, {}, Received())
    session: str = json.loads(answer.body)["id"]
    return session


async def follow(chats: Chats, message_id: str, after: float, into: Received) -> Meter:
    """Begin to follow a stream ``after`` seconds, and return the calls."""
    await asyncio.sleep(after)
    with record_calls() as meter:
        await chats.follow(message_id, into)
    return meter


async def units_and_followers(seconds: int, followers: int) -> list[str]:
    """Stream at all rates at once, and follow one of the streams. Return lines about units, dollars and delays."""
    order = random.Random(1)
    async with open_chats() as chats:
        await chats.say("1 tokens, 0 a second")
        idle = await stream(chats, 1, 0, Received())
        live = {rate: Received() for rate in RATES}
        read = [Received() for _ in range(followers)]
        starts = [order.uniform(0.5, seconds / 2) for _ in read]
        meters = await asyncio.gather(
            *(stream(chats, rate, seconds, live[rate], f"rate-{rate}") for rate in RATES),
            *(stream(chats, rate, TURN_SECONDS, Received()) for rate in RATES),
            *(follow(chats, f"rate-{FOLLOWED_RATE}", start, into) for start, into in zip(starts, read, strict=True)),
        )
    count = len(RATES)
    lines: list[str] = []
    for rate, long, turn in zip(RATES, meters[:count], meters[count : 2 * count], strict=True):
        lines += describe_units(rate, idle, long, turn, seconds)
    return [*lines, *describe_followers(live[FOLLOWED_RATE], read, starts, meters[2 * count :], seconds)]


def describe_units(rate: int, idle: Meter, long: Meter, turn: Meter, seconds: int) -> Iterator[str]:
    """Describe the units of a streamed second: those between begin and commit, without those of a turn that streams nothing."""
    reads = (long.read_units - idle.read_units) / seconds
    writes = (_writes_before_commit(long) - _writes_before_commit(idle)) / seconds
    to_reach = f" (to reach: {MAX_WRITE_UNITS}: {'met' if writes <= MAX_WRITE_UNITS else 'NOT met'})"
    yield (
        f"{rate:3} tokens a second: {writes:.2f} write units{to_reach if rate == FOLLOWED_RATE else ''} and {reads:.2f} read "
        "units a second"
    )
    gb_seconds = TURN_SECONDS * _memory("streams.create") / _MIB_IN_GB
    dollars = ResourceUsage(turn.read_units, turn.write_units, gb_seconds, invocations=1).dollars(TURNS)
    seconds_of_turns = TURNS * TURN_SECONDS * (float(WRITE_UNIT) * writes + float(READ_UNIT) * reads)
    yield (
        f"    a turn of {TURN_SECONDS} s: {turn.write_units:.0f} write and {turn.read_units:.0f} read units; a million of them: "
        f"{dollars['DynamoDB']:.0f} USD of the table, of which {seconds_of_turns:.0f} while they stream, beside "
        f"{dollars['Lambda']:.0f} USD of the function"
    )


def _writes_before_commit(meter: Meter) -> float:
    return sum(made.units for made in meter.made if not made.reads and made.operation != "TransactWriteItems")


def describe_followers(
    live: Received, read: Sequence[Received], starts: Sequence[float], meters: Sequence[Meter], seconds: int
) -> Iterator[str]:
    """Describe the delay between an event of the live reader and that of a follower, once the follower has begun."""
    delays: list[float] = []
    for follower, meter_start in zip(read, starts, strict=True):
        if follower.arrived.keys() != live.arrived.keys():
            raise SystemExit("a follower has read other events than the live reader")
        began = min(live.arrived.values()) + meter_start
        delays += [at - live.arrived[n] for n, at in follower.arrived.items() if live.arrived[n] > began]
    reads = sum(meter.read_units for meter in meters) / sum(seconds - start for start in starts)  # also when they begin
    gb_seconds = 60 * _memory("streams.get") / _MIB_IN_GB
    dollars = ResourceUsage(60 * reads, 0, gb_seconds, invocations=0).dollars(TURNS)
    p99 = statistics.quantiles(delays, n=100)[98]
    yield (
        f"{len(read)} followers: {statistics.median(delays):.2f} s behind at the median, {p99:.2f} at the 99th percentile, "
        f"{max(delays):.2f} at most"
    )
    yield (
        f"    {reads:.2f} read units a second; a million minutes: {dollars['DynamoDB']:.0f} USD of the table beside "
        f"{dollars['Lambda']:.0f} USD of the function"
    )


def _memory(module: str) -> int:
    """Return the memory of a route's function in MiB."""
    return next(route.memory for route in ROUTES if route.module == module)


class SlowCalls(Recorder):
    """Records calls that take as long as those of a table that is further away."""

    in_threads = False

    async def run_call(self, run: PendingCall[T]) -> T:
        await asyncio.sleep(_CALL_SECONDS)
        return await run()


async def measured_rounds() -> AsyncIterator[str]:
    """Yield a line for each kind of session: how many table calls stand one behind the other before the model is asked."""
    order = "2 tokens, 0 a second"
    async with open_chats() as chats:
        session = await create_session(chats)
        await chats.say(order, session="known")
        await chats.say(order, session=session)
        sessions: Mapping[str, str | None] = {
            "a session by its id": session,
            "a new session": None,
            "a new session with the client's name": "new",
            "an existing session by the client's name": "known",
        }
        for name, wanted in sessions.items():
            with inject(SlowCalls()) as plan:
                assert isinstance(plan, SlowCalls)
                await chats.say(order, session=wanted)
            found = plan.rounds(chats.model.asked_at)
            begun = [
                call.operation for call, (began, _) in zip(plan.calls, plan.spans, strict=True) if began < chats.model.asked_at
            ]
            yield f"{name}: {found} rounds before the model (to reach: {MAX_ROUNDS}): {', '.join(begun)}"


def measure(seconds: int, followers: int, figures: TextIO) -> None:
    """Print all figures to ``figures``. The gateway in this process logs to standard output."""

    async def run() -> None:
        async for line in measured_rounds():
            print(line, file=figures)
        print(*await units_and_followers(seconds, followers), sep="\n", file=figures)

    asyncio.run(run())
