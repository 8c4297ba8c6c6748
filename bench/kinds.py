"""Measure what each agent kind and the driver add to a model call, over a scripted model that answers at once.

    python -m bench.kinds [--runs N] [--rounds N]

A turn calls one tool and then answers, in two model calls; that of ``simple`` answers, in one. Beside it, in the same run,
pydantic-ai's agent does the same with its own test model. The smallest time of all rounds counts, because other processes only
add to it. The last column is the time that each further piece of a streamed reply takes.
"""

import argparse
import asyncio
import subprocess
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, cast

from bench.processes import ROOT
from spass.agents.driver import Driver
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.kinds.native_react import NativeReActAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.kinds.server_tools import ServerToolsAgent
from spass.agents.kinds.simple import SimpleAgent
from spass.calls.scope import CallReports, Scope
from spass.core.effects import Infer, ToolOutcome, user
from spass.core.events import CallEvent, collect
from spass.core.ids import RequestId, TenantId
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall, ToolCallDelta, ToolSpec
from spass.models.types import ChatDelta
from spass.store.tenant_store import TenantStore
from spass.tenancy.identity import Caller, Identity
from spass.tools.concurrent_calls import run_calls

PEER: Final = ROOT / ".venv-peers" / "bin" / "python"
ANSWER: Final = "The sum is 3."
ARGUMENTS: Final = '{"a": 1, "b": 2}'
PIECES: Final = 20
_USAGE: Final = TokenUsage(50, 10)
_NUMBER: Final = {"type": "integer"}
_PARAMETERS: Final[dict[str, Json]] = {"type": "object", "properties": {"a": _NUMBER, "b": _NUMBER}, "required": ["a", "b"]}
_ADD: Final = ToolSpec("add", "Return the sum of a and b.", _PARAMETERS)


def text(words: str) -> ChatDelta:
    return ChatDelta(words, finish_reason=FinishReason.STOP, usage=_USAGE)


_CALL: Final = ChatDelta(
    tool_calls=(ToolCallDelta(0, "call_1", "add", ARGUMENTS),), finish_reason=FinishReason.TOOL_CALLS, usage=_USAGE
)


@dataclass(slots=True)
class Candidate:
    """A kind with the replies of its model. ``seconds`` are the smallest of a model call and of a further piece."""

    name: str
    agent: BaseAgent
    replies: Sequence[ChatDelta]
    seconds: float = float("inf")
    piece_seconds: float = float("inf")

    @property
    def peer(self) -> str:
        """Return the peer's agent that does the same."""
        return "tool" if len(self.replies) > 1 else "text"


def candidates() -> list[Candidate]:
    native = [_CALL, text(ANSWER)]
    structured = [text(f"THOUGHT: I add.\nTOOL: add\nINPUT: {ARGUMENTS}"), text(f"FINAL_ANSWER: {ANSWER}")]
    written = [text(f"Thought: I add.\nAction: add\nAction Input: {ARGUMENTS}"), text(f"Final Answer: {ANSWER}")]
    prompt = "Answer briefly."
    return [
        Candidate("simple", SimpleAgent(system_prompt=prompt), [text(ANSWER)]),
        Candidate("orchestrator", OrchestratorAgent(system_prompt=prompt), native),
        Candidate("orchestrator, structured", OrchestratorAgent(system_prompt=prompt, mode="structured"), structured),
        Candidate("native_react", NativeReActAgent(system_prompt=prompt), written),
        Candidate("server tools of a chat", ServerToolsAgent(), native),
    ]


@dataclass(slots=True)
class InstantModel:
    """Answers with ``replies`` in turn, each in ``pieces`` pieces of text before its last delta."""

    replies: Sequence[ChatDelta]
    pieces: int = 0
    asked: int = field(default=0)

    async def perform(self, _: Infer) -> AsyncGenerator[ChatDelta, None]:
        reply = self.replies[self.asked % len(self.replies)]
        self.asked += 1
        for _piece in range(self.pieces):
            yield ChatDelta("word ")
        yield reply

    def begins_thinking(self, _: Infer) -> bool:
        return False


async def add(call: ToolCall, _: CallReports) -> ToolOutcome:
    message = Message(Role.TOOL, '{"sum": 3}', tool_call_id=call.id)
    return ToolOutcome(call, {"a": 1, "b": 2}, {"sum": 3}, message, 0)


def call_tools(calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
    return run_calls(calls, add, concurrency=8)


def new_scope() -> Scope:
    caller = Caller(
        Identity(TenantId("bench"), "t", admin=False, allowed_models=("*",)), None, RequestId("req"), None, 0, "bench"
    )
    return Scope.for_request(caller, cast("TenantStore", None))  # nothing here reads or writes the table


async def run(candidate: Candidate, runs: int, pieces: int = 0) -> tuple[float, int]:
    """Run the turn ``runs`` times. Return the seconds and the number of model calls."""
    model = InstantModel(candidate.replies, pieces)
    scope = new_scope()
    context = AgentContext(tools=("add",), specs=(_ADD,))
    if isinstance(candidate.agent, ServerToolsAgent):
        context = AgentContext((user("What is 1 + 2?"),))
    client_tools = () if isinstance(candidate.agent, ServerToolsAgent) else None
    content = ""
    began = time.perf_counter()
    for _ in range(runs):
        driver = Driver(model, call_tools, scope, client_tools=client_tools)
        content = collect([event async for event in driver.run(candidate.agent, "What is 1 + 2?", context)]).content
    seconds = time.perf_counter() - began
    assert pieces or content == ANSWER
    assert model.asked == runs * len(candidate.replies)
    return seconds, model.asked


def measure(candidate: Candidate, runs: int) -> None:
    seconds, calls = asyncio.run(run(candidate, runs))
    candidate.seconds = min(candidate.seconds, seconds / calls)
    streamed, calls = asyncio.run(run(candidate, max(1, runs // 10), PIECES))
    candidate.piece_seconds = min(candidate.piece_seconds, (streamed / calls - candidate.seconds) / PIECES)


@dataclass(slots=True)
class Peer:
    """pydantic-ai's agent in a process of the other environment."""

    process: "subprocess.Popen[str]"
    seconds: dict[str, float] = field(default_factory=dict)

    def measure(self, name: str, runs: int) -> None:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the process has pipes")
        self.process.stdin.write(f"{runs} {name}\n")
        self.process.stdin.flush()
        seconds, calls = self.process.stdout.readline().split()
        self.seconds[name] = min(self.seconds.get(name, float("inf")), float(seconds) / int(calls))


def start_peer(stack: ExitStack) -> Peer | None:
    if not PEER.exists():
        print("pydantic-ai is not installed (`make bench-env` does it); without it there is nothing to compare with.\n")
        return None
    command = [str(PEER), str(ROOT / "bench" / "peers" / "agent_loop.py")]
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    return Peer(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="turns of each kind in a round (default 500)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default 7)")
    options = parser.parse_args()
    measured = candidates()
    with ExitStack() as stack:
        peer = start_peer(stack)
        for _ in range(options.rounds):
            for candidate in measured:
                measure(candidate, options.runs)
            if peer is not None:
                peer.measure("text", max(1, options.runs // 10))
                peer.measure("tool", max(1, options.runs // 10))
    print(f"{'µs per model call':26} {'kind':>8} {'pydantic-ai':>12} {'further piece':>14}")
    for candidate in measured:
        report(candidate, peer)


def report(candidate: Candidate, peer: Peer | None) -> None:
    line = f"{candidate.name:26} {candidate.seconds * 1e6:8.0f}"
    pieces = f"{candidate.piece_seconds * 1e6:14.1f}"
    if peer is None:
        print(f"{line} {'':12} {pieces}")
        return
    theirs = peer.seconds[candidate.peer]
    verdict = "met" if candidate.seconds <= theirs else "NOT met"
    print(f"{line} {theirs * 1e6:12.0f} {pieces}  {verdict} (no slower)")


if __name__ == "__main__":
    main()
