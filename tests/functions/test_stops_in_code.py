"""A chat that is stopped while code, a fetch, a container or a foreign agent runs leaves nothing but a valid record."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from spass.testing.model import Answer
from tests.contained_kinds import IMAGE
from tests.functions.gateway import Gateway
from tests.functions.rlm_turns import PROCESSES, block
from tests.recording_runtime import RecordingRuntime
from tests.stream_grammar import answer_text, of_type, read_events
from tests.unit.sandbox.foreign.stand_ins import StandIns
from tests.unit.sandbox.process_list import descendants, still_running
from tests.unit.tools.internet import PUBLIC, Internet

CHAT: Final = "/c1/agents/worker/chat"
HANG: Final = "hang"
SLEEP: Final = {
    "openhands": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
    "claude_code": 'require("node:child_process").spawnSync("sleep", ["60"])',
}
END: Final = {"openhands": "conversation.say('Hello.')", "claude_code": "return [end('Hello.')]"}
WITHOUT_CALL: Final = ("user", "assistant")
WITH_CELL: Final = ("user", "assistant", "tool", "assistant")


@dataclass(frozen=True)
class Work:
    """The turn of an agent with the keys ``agent``. Its model writes ``reply``, and hangs if that is None or if code asks it.

    ``processes`` run at the time of the stop. ``roles`` are those of the recorded messages, ``calls`` the statuses of the calls
    of tools in the audit.
    """

    agent: str
    text: str = "Please."
    reply: str | None = None
    processes: int = 0
    roles: Sequence[str] = WITHOUT_CALL
    calls: Mapping[str, str] = field(default_factory=dict)
    next_text: str = "And now?"


def cell(agent: str, code: str, *, processes: int = 1, **calls: str) -> Work:
    """Return a turn that is stopped while ``code`` runs."""
    calls = {"code_interpreter": "cancelled", **calls}
    return Work(agent, reply=f"I wait.\n{block(code)}", processes=processes, roles=WITH_CELL, calls=calls)


IN_PROCESSES: Final = {
    "code of rlm": cell("kind: rlm", "while True: pass"),
    "code of native_openhands": cell("kind: native_openhands", "while True: pass"),
    "code that catches everything": cell(
        "kind: rlm", "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    ),
    "code that waits for a model": cell("kind: rlm", f"llm_query('{HANG}')"),
    "code that waits for models": cell("kind: rlm", f"llm_batch(['{HANG}'] * 20)"),
    "code that waits for a tool": cell("kind: rlm\ntools: [llm]", f"llm(prompt='{HANG}')", llm="cancelled"),
}
WORKS: Final[Mapping[str, Work]] = {
    **(IN_PROCESSES if PROCESSES.unavailable is None else {}),
    "a resolution": Work("kind: native_openhands", "Read https://unresolved.example/"),
    "a fetch": Work("kind: native_openhands", "Read https://slow.example/"),
    "a container whose model answers": Work("kind: simple\ncontainer: {}", processes=2),
    "code in a container": cell("kind: rlm\ncontainer: {}", "while True: pass", processes=3),
    "code that waits in a container": cell("kind: rlm\ncontainer: {}", f"llm_query('{HANG}')", processes=3),
    "a container that says nothing": Work("kind: simple\ncontainer: {image: silent}", processes=2),
    "openhands": Work("kind: openhands", SLEEP["openhands"], processes=2, next_text=END["openhands"]),
    "claude_code": Work("kind: claude_code", SLEEP["claude_code"], processes=2, next_text=END["claude_code"]),
}
SILENT: Final = f"""import sys, time
if sys.argv[-1] == "silent":
    time.sleep(60)
{IMAGE}"""


@dataclass
class World:
    """Everything outside of the gateway that a turn can keep busy. ``asked`` are the model calls that hang, ``fetched`` the
    requests for pages."""

    gateway: Gateway
    runtime: RecordingRuntime
    internet: Internet
    stand_ins: StandIns
    asked: int = 0
    fetched: int = 0

    def script(self, work: Work) -> Callable[[ChatRequest, CallContext], Answer | AsyncGenerator[ChatDelta, None]]:
        def answer(request: ChatRequest, _: CallContext) -> Answer | AsyncGenerator[ChatDelta, None]:
            hangs = work.reply is None or request.messages[0].content == HANG or request.messages[-1].content == HANG
            return self._hang() if hangs else str(work.reply)

        return answer

    async def _hang(self) -> AsyncGenerator[ChatDelta, None]:
        self.asked += 1
        try:
            yield ChatDelta("I be")
            await asyncio.Event().wait()
        finally:
            self.asked -= 1

    async def resolve(self, name: str) -> Sequence[str]:
        if name != "unresolved.example":
            return (PUBLIC,)
        self.internet.open_transports += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.internet.open_transports -= 1
        return ()

    def respond(self, request: HttpRequest) -> HttpAnswer | None:
        """Answer no request until its connection is closed."""
        self.fetched += 1
        self.fetched -= request.wait_for_disconnect(20)
        return None

    def left(self) -> list[str]:
        """Return what of a turn is still there."""
        counts = {"a model call": self.asked, "a request": self.fetched, "a transport": self.internet.open_transports}
        return [*self.runtime.running, *(name for name, count in counts.items() if count)]


@pytest.fixture
def world(gateway: Gateway, stand_ins: StandIns, runtime: RecordingRuntime) -> Iterator[World]:
    runtime.contain(SILENT)
    gateway.services.sandbox = PROCESSES
    world = World(gateway, runtime, Internet(), stand_ins)
    with serve(world.respond) as server:
        world.internet.servers = {PUBLIC: server}
        gateway.services.fetcher = type(world.internet.fetcher)(world.resolve, world.internet.open_transport)
        yield world


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.02)


def is_busy(world: World, work: Work, before: set[int]) -> bool:
    if len(descendants() - before) < work.processes:
        return False
    if work.agent.startswith(("kind: native_openhands", "kind: simple\ncontainer: {}")) or HANG in (work.reply or ""):
        busy = world.fetched if "slow" in work.text else world.left()
        return bool(busy) or "while" in (work.reply or "")
    return True


@pytest.mark.parametrize("name", WORKS)
def test_a_stopped_turn_leaves_nothing_that_runs_and_a_valid_record(world: World, name: str) -> None:
    work, gateway = WORKS[name], world.gateway
    kind = work.agent.removeprefix("kind: ").partition("\n")[0]
    workspace = f"\nworkspace: {world.stand_ins.workspace}" if kind in SLEEP else ""
    (gateway.services.settings.agents / "worker.yaml").write_text(f"name: worker\nmodel: small\n{work.agent}{workspace}\n")
    gateway.model.script = world.script(work)
    if kind in SLEEP:  # the first use installs the runner
        assert answer_text(read_events(send(gateway, END[kind], "m0"))) == "Hello."
    before = descendants()

    async def stop() -> None:
        await wait_until(lambda: is_busy(world, work, before))
        await asyncio.sleep(0.2)
        busy = descendants() - before
        stopped = await gateway.send_async("DELETE", f"{CHAT}/m1")
        assert (stopped.status, stopped.json) == (202, {"status": "cancelling"})
        await wait_until(lambda: not still_running(busy) and not descendants() - before and not world.left())

    events = read_events(gateway.send_during(chat(gateway, work.text, "m1"), stop()))
    (done,) = of_type(events, "done")
    assert done["finish_reason"] == "cancelled"
    assert all(call["result"]["error"]["code"] == "cancelled" for call in of_type(events, "tool_call"))
    assert_valid(gateway, work, done["session_id"])
    assert gateway.send("DELETE", f"{CHAT}/m1").json == {"status": "done"}
    gateway.model.script = "Hello."
    world.internet.servers = {}
    world.runtime.contain(IMAGE)
    session = None if kind in SLEEP else done["session_id"]  # the stand-ins would run all messages of the session
    again = read_events(send(gateway, work.next_text, "m2", session))
    assert answer_text(again) == "Hello."
    assert not descendants() - before


def assert_valid(gateway: Gateway, work: Work, session: str) -> None:
    """Check the record of the stopped turn: every call has one result, which says that it was cancelled."""
    path = f"/a1/agents/worker/sessions/{session}"
    messages = gateway.send("GET", f"{path}/messages").json["messages"]
    assert [message["role"] for message in messages] == [*work.roles]
    called = [call["id"] for message in messages for call in message["tool_calls"] or ()]
    results = {message["tool_call_id"]: json.loads(message["content"]) for message in messages if message["role"] == "tool"}
    assert [*results] == called
    assert {result["error"]["code"] for result in results.values()} <= {"cancelled"}
    assert gateway.send("GET", path).json["active_turn"] is None
    tools = {record["tool"]: record["status"] for record in gateway.records() if record["kind"] == "tool"}
    assert tools == work.calls


def chat(gateway: Gateway, text: str, message_id: str) -> Awaitable[Any]:
    body = {"message_id": message_id, "messages": [{"role": "user", "content": text}]}
    return gateway.send_async("POST", CHAT, body=body)


def send(gateway: Gateway, text: str, message_id: str, session: str | None = None) -> Any:
    body = {"message_id": message_id, "messages": [{"role": "user", "content": text}]}
    return gateway.send("POST", CHAT, body=body | ({"session_id": session} if session else {}))
