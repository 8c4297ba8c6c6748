"""Processor time of an agent's turn without a bus, with an empty bus and with ten subscribers of every event.

    python -m bench.bus [--turns N] [--rounds N]

The turn calls a tool and publishes eight events. It runs in process, from the route to the audit: the model is scripted and the
table is in memory, so that the turn is as short as it can be. "Without a bus" replaces ``publish`` by a method that does nothing.
Each round measures every variant. The figures are medians over all rounds; the added time is the median of the differences within
a round. ``bench.calls`` prints these lines too.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import httpx

from bench.processes import TOKEN, USER, silence_logs, write_config
from functions.agents.chat import router
from spass.core.bus import EVENT_TYPES, EventBus, EventType
from spass.core.bus_events import BusEvent
from spass.core.messages import FinishReason, Role, TokenUsage, ToolCallDelta
from spass.metering.telemetry import Telemetry, Traces
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices, gateway_client
from spass.testing.model import Deltas, ScriptedModel
from spass.web.services import Settings

E = TypeVar("E", bound=BusEvent)

USAGE: Final = TokenUsage(10, 5)
CALL: Final[Deltas] = [
    ChatDelta(
        tool_calls=(ToolCallDelta(0, "call_1", "calculator", '{"expression": "6*7"}'),),
        finish_reason=FinishReason.TOOL_CALLS,
        usage=USAGE,
    )
]
ANSWER: Final[Deltas] = [ChatDelta("It is 42.", finish_reason=FinishReason.STOP, usage=USAGE)]
TABLE: Final = sys.stdout  # the gateway logs to standard output too, which is redirected


class NoBus(EventBus):
    """Publishes nothing, not even to subscribers."""

    def publish(self, event_type: EventType[E], build: Callable[[], E]) -> None:
        pass


def subscribed(count: int) -> EventBus:
    """Return a bus with ``count`` subscribers of every type of events."""
    bus = EventBus()
    for event_type in EVENT_TYPES:
        for _ in range(count):
            bus.subscribe(event_type, lambda event: event)
    return bus


def logging_bus() -> EventBus:
    """Return a bus with telemetry and traces, which write their lines to nowhere."""
    bus = EventBus()
    Telemetry("Spass/bench").subscribe(bus)
    Traces().subscribe(bus)
    return bus


VARIANTS: Final[dict[str, EventBus]] = {
    "without a bus": NoBus(),
    "an empty bus": subscribed(0),
    "ten subscribers": subscribed(10),
    "telemetry and traces": logging_bus(),
}


def script(request: ChatRequest, _: CallContext) -> Deltas:
    return ANSWER if request.messages[-1].role is Role.TOOL else CALL


async def measure(turns: int = 25, rounds: int = 60) -> None:
    """Print the figures of each variant."""
    with tempfile.TemporaryDirectory() as folder:
        environment = write_config(Path(folder), "http://nowhere.invalid", with_tools=True)
        settings = Settings.from_environment({**os.environ, **environment})
        services = ScriptedServices(settings, ScriptedModel(script), MemoryAws())
        times: dict[str, list[float]] = {name: [] for name in VARIANTS}
        async with gateway_client([router], services, TOKEN) as client:
            client.headers["SPASS-User-Id"] = USER
            for number in range(rounds + 1):
                names = [*VARIANTS]
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    services.__dict__["bus"] = VARIANTS[name]
                    seconds = await run_turns(client, turns)
                    if number:  # the first round warms up
                        times[name].append(seconds / turns)
    report(times)


async def run_turns(client: httpx.AsyncClient, turns: int) -> float:
    """Return the processor time of ``turns`` turns in seconds."""
    began = time.process_time()
    for _ in range(turns):
        (await client.post("/a1/agents/bench-tools/chat", json={"message": "What is 6 * 7?"})).raise_for_status()
    return time.process_time() - began


def report(times: Mapping[str, Sequence[float]]) -> None:
    first = times["without a bus"]
    print(f"{'a turn with one tool call':24} {'µs':>7} {'quartiles':>13} {'added µs':>9}", file=TABLE)
    for name, seconds in times.items():
        low, median, high = (1e6 * value for value in statistics.quantiles(seconds, n=4))
        added = 1e6 * statistics.median(own - other for own, other in zip(seconds, first, strict=True))
        print(f"{name:24} {median:7.0f} {low:6.0f} {high:6.0f} {added:9.0f}", file=TABLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=25, help="turns of each variant in a round (default 25)")
    parser.add_argument("--rounds", type=int, default=60, help="rounds (default 60)")
    options = parser.parse_args()
    with silence_logs():
        asyncio.run(measure(options.turns, options.rounds))


if __name__ == "__main__":
    main()
