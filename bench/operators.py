"""Measure operators: what a run costs beside a turn of a session, what a search of notes takes, and what each axis calls aside.

    python -m bench.operators [--searches N]

The first table is counted on an emulated AWS: the AWS calls and the capacity units of a turn of an ordinary agent and of a run of
an operator, in sessions of the same length. The searches run in this process (``bench.operator_notes``), and so do the runs of
``monitor_operative`` (``bench.operator_axes``), whose model is scripted.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from bench import operator_axes, operator_notes
from bench.meter import Meter, record_calls
from bench.processes import TOKEN, USER, emulated_aws, silence_logs, write_config
from spass.testing.model_server import Body, Completion, serve_model

MORE_CALLS: Final = 4
"""AWS calls that a run of an operator may make in addition to those of a turn."""
FIGURES: Final = sys.stdout  # the gateway in this process logs to standard output, and is led away from it
_WARM_UP: Final = 2
_HEADERS: Final = {"Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": USER}
_SUM: Final = ("calculator", {"expression": "2+2"})
_AGENTS: Final[Mapping[str, str]] = {
    "bench-turns": "kind: orchestrator\ntools: [calculator]\n",
    "bench-operator": "kind: operative\ntools: [calculator]\n",
    "bench-keeper": "kind: operative\ntools: [memory_store, memory_search]\n",
}


@dataclass(frozen=True, slots=True)
class Work:
    """A turn or a run to measure: the agent, and the tools that its model calls, one in each reply."""

    name: str
    agent: str
    tools: Sequence[tuple[str, Mapping[str, object]]] = ()

    @property
    def message(self) -> str:
        return json.dumps([{"name": name, "arguments": json.dumps(arguments)} for name, arguments in self.tools])


TURN: Final = Work("turn of a session", "bench-turns")
TURN_WITH_TOOLS: Final = Work("turn of a session, three tools", "bench-turns", (_SUM,) * 3)
RUN: Final = Work("run of an operator", "bench-operator")
RUN_WITH_TOOLS: Final = Work("run of an operator, three tools", "bench-operator", (_SUM,) * 3)
KEEPER: Final = Work(
    "run of an operator, two notes and a search",
    "bench-keeper",
    (
        ("memory_store", {"content": "The gate opens at nine.", "key": "gate"}),
        ("memory_store", {"content": "The report is due on Friday."}),
        ("memory_search", {"query": "gate"}),
    ),
)


def call_what_the_message_says(request: Body) -> Completion:
    """Call the tools that the user's last message lists, one in each reply, and then answer."""
    messages = request["messages"]
    asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
    calls = json.loads(str(messages[asked]["content"]).rpartition("\n")[2])
    done = sum(message["role"] == "tool" for message in messages[asked:])
    if done == len(calls):
        return Completion({"role": "assistant", "content": "Done."})
    return Completion({"role": "assistant", "tool_calls": [{"id": f"call_{done}", "type": "function", "function": calls[done]}]})


@contextmanager
def gateway() -> Iterator[httpx.AsyncClient]:
    """Run an emulated AWS and a scripted model, and yield a client of a gateway in this process."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(serve_model(call_what_the_message_says))
        os.environ |= stack.enter_context(emulated_aws()) | write_config(folder, upstream)
        for name, text in _AGENTS.items():
            (folder / "agents" / f"{name}.yaml").write_text(
                f"name: {name}\nmodel: bench-model\ndescription: Works.\nsystem_prompt: Work.\n{text}"
            )
        stack.enter_context(silence_logs())
        from bench.gateway import app

        yield httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=_HEADERS, timeout=60)


async def measure_work(client: httpx.AsyncClient, work: Work) -> Meter:
    """Return the AWS calls of the third run of ``work``. An ordinary agent runs it in a session of its own."""
    path = f"/a1/agents/{work.agent}/chat"
    if work.agent == TURN.agent:
        session = await client.post(f"/a1/agents/{work.agent}/sessions", json={})
        path = f"/a1/agents/{work.agent}/sessions/{session.raise_for_status().json()['id']}/messages"
    else:
        (await client.delete(f"/v1/operators/{work.agent}")).raise_for_status()
    for _ in range(_WARM_UP):
        (await client.post(path, json={"message": work.message})).raise_for_status()
    with record_calls() as meter:
        reply: Mapping[str, Any] = (await client.post(path, json={"message": work.message})).raise_for_status().json()
    calls = reply["tool_calls"]
    if [call["name"] for call in calls] != [name for name, _ in work.tools] or any("error" in call["result"] for call in calls):
        raise SystemExit(f"{work.name}: other calls than expected, or failed ones: {calls}")
    return meter


async def compare_runs_with_turns(client: httpx.AsyncClient) -> None:
    print(f"{'':44} {'calls':>5} {'read':>6} {'write':>6} units   calls by kind", file=FIGURES)
    meters: dict[str, Meter] = {}
    async with client:
        for work in (TURN, RUN, TURN_WITH_TOOLS, RUN_WITH_TOOLS, KEEPER):
            meter = meters[work.name] = await measure_work(client, work)
            kinds = ", ".join(f"{operation} ×{count}" for (_, operation), count in meter.counted().items())
            print(
                f"{work.name:44} {len(meter.made):5} {meter.read_units:6.1f} {meter.write_units:6.1f}         {kinds}",
                file=FIGURES,
            )
    for turn, run in ((TURN, RUN), (TURN_WITH_TOOLS, RUN_WITH_TOOLS)):
        more = len(meters[run.name].made) - len(meters[turn.name].made)
        verdict = "met" if more <= MORE_CALLS else "NOT met"
        print(f"{run.name}: {more} calls more than a {turn.name} (to reach: {MORE_CALLS}): {verdict}", file=FIGURES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=30, help="searches of each kind (default 30)")
    options = parser.parse_args()
    with gateway() as client:
        asyncio.run(compare_runs_with_turns(client))
    print()
    asyncio.run(operator_notes.measure(options.searches))
    print()
    asyncio.run(operator_axes.measure())


if __name__ == "__main__":
    main()
