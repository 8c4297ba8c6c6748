"""Measure what a delegate adds to its own turn: processor time, and calls of the table.

    python -m bench.delegate [--turns N] [--rounds N]

The worker's turn calls a tool, in two model calls. The director's turn calls ``delegate``, which runs the worker's turn, or
``think``, which does nothing. A delegation adds the time of the director's turn with the worker, less that without, less that of
the worker's own turn. Models answer at once and the table is in memory; audit, defence, redaction and events are the gateway's.
Each round measures every variant; the figures are medians over all rounds.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Final

from bench.meter import record_calls
from bench.processes import silence_logs, write_config
from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec
from spass.core.ids import RequestId, TenantId, UserId, WorkspaceId, new_id
from spass.core.messages import FinishReason, Role, TokenUsage, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.runs.run import RunRequest
from spass.runs.service import Started
from spass.tenancy.identity import Caller, Identity
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices
from spass.testing.model import Deltas, ScriptedModel
from spass.tools.grants import Grants
from spass.web.services import Services, Settings

WANTED_MS: Final = 5
MODEL: Final = "bench-model"
USAGE: Final = TokenUsage(10, 5)
GRANTS: Final = Grants(WorkspaceId("default"), delegates=("worker",))
TABLE: Final = sys.stdout  # the gateway logs to standard output too, which is redirected


def agent(name: str, tool: str) -> AgentSpec:
    return AgentSpec(name=name, model=MODEL, tools=(tool,), grants=GRANTS, parameters={"system_prompt": name})


AGENTS: Final = (agent("worker", "calculator"), agent("director", "delegate"), agent("thinker", "think"))


def call(tool: str, **arguments: str) -> Deltas:
    piece = ToolCallDelta(0, "call_1", tool, json.dumps(arguments))
    return [ChatDelta("I ask.", (piece,), FinishReason.TOOL_CALLS, USAGE)]


CALLS: Final[Mapping[str, Deltas]] = {
    "worker": call("calculator", expression="6*7"),
    "director": call("delegate", agent="worker", task="How much is 6 * 7?"),
    "thinker": call("think", thought="How much is 6 * 7?"),
}
ANSWER: Final[Deltas] = [ChatDelta("It is 42.", finish_reason=FinishReason.STOP, usage=USAGE)]


def script(request: ChatRequest, _: CallContext) -> Deltas:
    return ANSWER if request.messages[-1].role is Role.TOOL else CALLS[request.messages[0].content.split()[0]]


async def run_turn(services: Services, agent: AgentSpec) -> int:
    """Run one turn and render its stream. Return the number of its frames."""
    identity = Identity(TenantId("bench"), "bench", admin=False, allowed_models=("*",))
    scope = services.scope(Caller(identity, UserId("bench"), RequestId(new_id("req")), None, 0, "bench"))
    run = await services.runs.stream(scope, agent, RunRequest("How much is 6 * 7?"), lambda error: {"message": error.message})
    assert isinstance(run, Started)
    assert run.log is not None
    return len(await run.log.result())


async def measure(turns: int, rounds: int) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.from_environment({**environ, **write_config(Path(folder), "http://nowhere.invalid")})
        services = ScriptedServices(settings, ScriptedModel(script), MemoryAws())
        services.agents = AgentRegistry(AGENTS)
        seconds: dict[str, list[float]] = {agent.name: [] for agent in AGENTS}
        for number in range(rounds + 1):
            for agent in AGENTS[number % 3 :] + AGENTS[: number % 3]:
                began = time.process_time()
                for _ in range(turns):
                    await run_turn(services, agent)
                if number:  # the first round warms up
                    seconds[agent.name].append((time.process_time() - began) / turns)
        table_calls: dict[str, int] = {}
        for agent in AGENTS:
            with record_calls() as meter:
                await run_turn(services, agent)
            table_calls[agent.name] = len(meter.made)
    report(seconds, table_calls)


def report(seconds: Mapping[str, Sequence[float]], table_calls: Mapping[str, int]) -> None:
    names = {"worker": "the worker's own turn", "thinker": "the director's, without it", "director": "the director's, with it"}
    print(f"{'':28} {'ms':>6} {'table calls':>12}", file=TABLE)
    for name, shown in names.items():
        print(f"{shown:28} {1e3 * statistics.median(seconds[name]):6.2f} {table_calls[name]:12}", file=TABLE)
    rounds = zip(seconds["director"], seconds["thinker"], seconds["worker"], strict=True)
    added = 1e3 * statistics.median(whole - without - own for whole, without, own in rounds)
    calls = table_calls["director"] - table_calls["thinker"] - table_calls["worker"]
    verdict = "met" if added < WANTED_MS else "NOT met"
    print(f"{'the delegation adds':28} {added:6.2f} {calls:12}  {verdict} (under {WANTED_MS} ms)", file=TABLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=25, help="turns of each variant in a round (default 25)")
    parser.add_argument("--rounds", type=int, default=40, help="rounds (default 40)")
    options = parser.parse_args()
    with silence_logs():
        asyncio.run(measure(options.turns, options.rounds))


if __name__ == "__main__":
    main()
