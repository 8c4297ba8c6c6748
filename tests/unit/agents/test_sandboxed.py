"""A kind in a container does what it does in this process: the same events, record and errors. It can do nothing else."""

import asyncio
import json
import re
import time
from collections.abc import Coroutine, Iterator
from dataclasses import MISSING, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from spass.agents.kinds import KINDS, AgentContext, AgentResult, BaseAgent
from spass.agents.kinds.foreign import ForeignAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.kinds.rlm import RLMAgent
from spass.agents.kinds.simple import SimpleAgent
from spass.agents.sandboxed import SandboxedAgent
from spass.agents.spec import AgentSpec, ContainerSettings
from spass.core.bus import EVENT_TYPES, EventBus
from spass.core.effects import Answer, ForeignResult, ForeignRun, ReportStatus, Steps
from spass.core.errors import InternalError, SandboxUnavailable, UpstreamError, UpstreamTimeout
from spass.core.messages import Message, Role
from spass.sandbox import ContainerRunner
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.launchers import LaunchedSandbox
from spass.sandbox.limits import Limits
from spass.sandbox.process import ProcessLauncher
from tests.contained_kinds import AGENTS, CONTEXT, IMAGE, TURNS, TYPICAL, driver_of, events_of
from tests.recording_runtime import RecordingRuntime
from tests.sampling import SOAK, sampled
from tests.unit.agents.driver_harness import ScriptedReply, ScriptedWorld
from tests.unit.agents.engine_harness import make_engine_harness
from tests.unit.tools.fakes import scope_for

pytestmark = pytest.mark.anyio


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingRuntime]:
    folder = tmp_path / "runtime"
    folder.mkdir()
    runtime = RecordingRuntime(folder)
    runtime.contain(IMAGE)
    monkeypatch.setenv("PATH", runtime.path)
    yield runtime
    assert runtime.running == set(), "every container is removed"


def contained(agent: BaseAgent, **options: Any) -> SandboxedAgent:
    return SandboxedAgent(agent=agent, runner=ContainerRunner(timeout=60), **options)


def process_sandbox() -> LaunchedSandbox:
    return LaunchedSandbox("process", ProcessLauncher)


ALL: Final = tuple(product(AGENTS, TURNS))


@pytest.mark.parametrize(("kind", "turn"), ALL if SOAK else sampled(TYPICAL, 3))
async def test_a_kind_gives_the_same_events_in_a_container(runtime: RecordingRuntime, kind: str, turn: str) -> None:
    agent = AGENTS[kind]()
    in_process = await events_of(agent, turn, sandbox=process_sandbox())
    assert await events_of(contained(agent), turn) == in_process
    assert len(in_process) > 2
    assert len(runtime.runs) in ((1, 2) if "overflow" in turn else (1,)), "an overflow needs a new container"


def test_the_parameters_are_those_of_the_page() -> None:
    defaults = {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(SandboxedAgent)
        if field.init
    }
    assert defaults == {
        "agent": MISSING,
        "runner": MISSING,
        "engine": None,
        "model": "",
        "workspace": "",
        "mounts": [],
        "secrets": {},
        "bus": None,
    }


async def test_the_payload_is_one_line_with_everything_that_the_kind_needs(runtime: RecordingRuntime, tmp_path: Path) -> None:
    seen = tmp_path / "payload"
    runtime.contain(f"import sys\nopen({str(seen)!r}, 'w').write(sys.stdin.readline())\n")
    agent = contained(
        OrchestratorAgent(system_prompt="Be brief.", temperature=0.1, max_turns=2, mode="structured"),
        model="large",
        workspace="/work",
        secrets={"KEY": "value"},
    )
    with pytest.raises(UpstreamError):
        await agent.run("hello", CONTEXT, driver_of(ScriptedWorld([])))
    payload = json.loads(seen.read_text())
    assert list(payload) == ["prompt", "agent_id", "model", "params", "context", "workspace", "secrets"]
    assert payload["params"] == {
        "system_prompt": "Be brief.",
        "temperature": 0.1,
        "max_tokens": 1024,
        "max_turns": 2,
        "mode": "structured",
    }
    assert (payload["prompt"], payload["agent_id"], payload["model"]) == ("hello", "orchestrator", "large")
    assert payload["context"]["conversation"][1] == {"type": "Message", "role": "assistant", "content": "older ä\u2028"}
    assert (payload["workspace"], payload["secrets"]) == ("/work", {"KEY": "value"})


async def test_a_result_has_the_answer_the_calls_and_the_turns(runtime: RecordingRuntime) -> None:
    world = ScriptedWorld([ScriptedReply("", ("calculator",)), ScriptedReply("Four.")])
    result = await contained(OrchestratorAgent()).run("2+2?", AgentContext(), driver_of(world))
    assert (result.content, result.turns) == ("Four.", 2)
    assert [call.tool_name for call in result.tool_results] == ["calculator"]


async def test_the_model_and_the_engine_are_replaced(runtime: RecordingRuntime) -> None:
    own, other = ScriptedWorld([ScriptedReply("own")]), ScriptedWorld([ScriptedReply("other")])
    result = await contained(SimpleAgent(), engine=driver_of(other), model="large").run("?", AgentContext(), driver_of(own))
    assert result.content == "other"
    assert own.effects == []
    assert [effect.model for effect in other.effects] == ["large"]
    await contained(SimpleAgent()).run("?", AgentContext(), driver_of(own))
    assert [effect.model for effect in own.effects] == [None]


async def test_the_model_of_sub_calls_is_not_replaced(runtime: RecordingRuntime) -> None:
    world = ScriptedWorld(TURNS["code"])
    await contained(RLMAgent(sub_model="small"), model="large").run("?", CONTEXT, driver_of(world))
    assert {effect.model for effect in world.effects} == {"large", "small"}


async def test_the_bus_gets_the_events_of_the_run_alone(runtime: RecordingRuntime) -> None:
    bus, seen = EventBus(), list[str]()
    for event_type in EVENT_TYPES:
        bus.subscribe(event_type, lambda _, event_type=event_type: seen.append(event_type.name))  # type: ignore[misc]
    driver = driver_of(ScriptedWorld(TURNS["code"]))
    await contained(RLMAgent(), bus=bus).run("?", CONTEXT, driver)
    assert seen[0] == "agent_turn_start"
    assert seen[-1] == "agent_turn_end"
    assert seen.count("tool_call_start") == seen.count("tool_call_end") == 2
    await RLMAgent().run("?", CONTEXT, driver)
    assert seen.count("agent_turn_end") == 1


async def test_state_of_code_survives_a_new_container(runtime: RecordingRuntime) -> None:
    events = await events_of(contained(RLMAgent()), "code and an overflow")
    assert len(runtime.runs) == 2
    assert any("'output': '7 " in event for event in events)


PRELUDE: Final = """
import json, sys, time
def say(*lines): print(*lines, sep="\\n", flush=True)
def effect(value): say("---SPASS_EFFECT--- " + json.dumps(value))
def answer(value): say("---SPASS_OUTPUT_START---", json.dumps(value), "---SPASS_OUTPUT_END---")
sys.stdin.readline()
"""
HOSTILE: Final = {
    "effect({'type': 'Answer', 'content': 'x'})": (UpstreamError, "not an effect"),
    "effect({'type': 'Delete'})": (UpstreamError, "not an effect"),
    "effect({})": (UpstreamError, "not an effect"),
    "effect({'type': 'ReportStatus'})": (UpstreamError, "not an effect"),
    "effect({'type': 'Unhandled'})": (UpstreamError, "not an effect"),
    "effect({'type': 'CallTools', 'calls': [1]})": (UpstreamError, "not an effect"),
    "effect({'type': 'RunForeign', 'spec': {'type': 'ForeignRun', 'runner': 'openhands', 'prompt': '', 'system_prompt': '', "
    "'workspace': '/', 'timeout': 1}})": (UpstreamError, "foreign agent"),
    "say('---SPASS_EFFECT--- {')": (UpstreamError, "not a valid JSON object"),
    "pass": (UpstreamError, "wrote no answer"),
    "answer({'content': 1})": (UpstreamError, "not an effect"),
    "answer({'type': 'Answer'})": (UpstreamError, "not an effect"),
    "answer({'type': 'ReportStatus', 'detail': 'x'})": (UpstreamError, "not an effect"),
    "answer({'type': 'Failure', 'message': 'broken'})": (InternalError, "broken"),
    "answer({'content': 'a'}); answer({'content': 'b'})": (UpstreamError, "two answers"),
    "effect({'type': 'ReportStatus', 'detail': 'x'}); sys.exit(1)": (UpstreamError, "exit code 1"),
    "time.sleep(60)": (UpstreamTimeout, "took longer than"),
}


@pytest.mark.parametrize("code", sampled([*HOSTILE], 3))
async def test_a_hostile_image_is_one_clear_error(runtime: RecordingRuntime, code: str) -> None:
    runtime.contain(PRELUDE + code)
    agent = SandboxedAgent(agent=SimpleAgent(), runner=ContainerRunner(timeout=2))
    world = ScriptedWorld([ScriptedReply("x")])
    error, message = HOSTILE[code]
    with pytest.raises(error, match=message):
        await agent.run("?", AgentContext(), driver_of(world))
    assert world.effects == []


async def test_an_image_of_a_plain_program_may_answer_with_content(runtime: RecordingRuntime) -> None:
    runtime.contain(PRELUDE + "answer({'content': 'plain', 'tool_results': [], 'metadata': {'a': 1}})")
    result = await contained(SimpleAgent()).run("?", AgentContext(), driver_of(ScriptedWorld([])))
    assert (result.content, result.metadata, result.turns) == ("plain", {"a": 1}, 0)


async def test_turns_of_one_tenant_do_not_keep_that_of_another_waiting(runtime: RecordingRuntime, tmp_path: Path) -> None:
    has_ended = tmp_path / "has_ended"
    read = PRELUDE.replace("sys.stdin.readline()", "prompt = json.loads(sys.stdin.readline())['prompt']")
    wait = f"import os\nwhile prompt == 'wait' and not os.path.exists({str(has_ended)!r}): time.sleep(0.05)\n"
    runtime.contain(f"{read}{wait}answer({{'content': prompt}})")
    agent = SandboxedAgent(agent=SimpleAgent(), runner=ContainerRunner(timeout=20, max_concurrent=1))

    def ask(tenant: str, prompt: str) -> Coroutine[None, None, AgentResult]:
        return agent.run(prompt, AgentContext(), driver_of(ScriptedWorld([], scope=scope_for(tenant))))

    busy = [asyncio.create_task(ask("busy", "wait")) for _ in range(2)]
    async with asyncio.timeout(10):
        while not runtime.running:
            await asyncio.sleep(0.01)
    other = await ask("other", "now")
    assert (other.content, [turn.done() for turn in busy]) == ("now", [False, False])
    has_ended.touch()
    assert [turn.content for turn in await asyncio.gather(*busy)] == ["wait", "wait"]


async def test_lines_about_children_that_nobody_started_change_nothing(runtime: RecordingRuntime) -> None:
    runtime.contain(PRELUDE + "effect({'type': 'Child', 'line': 'x'}); effect({'type': 'Ended'}); answer({'content': 'fine'})")
    assert (await contained(SimpleAgent()).run("?", AgentContext(), driver_of(ScriptedWorld([])))).content == "fine"


@dataclass(frozen=True, kw_only=True)
class BrokenAgent(BaseAgent):
    """Fail."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        yield ReportStatus("x")
        return Answer("never")


class UnknownAgent(BrokenAgent):
    """A kind without a key."""


async def test_a_kind_that_the_image_does_not_contain_is_named(
    runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS._registered, "sandboxed_broken", BrokenAgent)
    with pytest.raises(InternalError, match="The image cannot run the agent kind 'sandboxed_broken'"):
        await contained(BrokenAgent()).run("?", AgentContext(), driver_of(ScriptedWorld([])))


def test_a_kind_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="UnknownAgent is not a registered agent kind"):
        contained(UnknownAgent())
    with pytest.raises(ValueError, match="SandboxedAgent is not a registered agent kind"):
        contained(contained(SimpleAgent()))


async def test_a_missing_runtime_is_a_runtime_error_before_the_turn() -> None:
    agent = SandboxedAgent(agent=SimpleAgent(), runner=ContainerRunner(runtime="no-such-runtime"))
    world = ScriptedWorld([])
    with pytest.raises(RuntimeError, match="'no-such-runtime' is not on the PATH"):
        await agent.run("?", AgentContext(), driver_of(world))
    [*_, failed] = [event async for event in driver_of(world).run(agent, "?", AgentContext())]
    assert isinstance(getattr(failed, "error", None), SandboxUnavailable)


async def test_a_refused_mount_is_an_error_before_the_start(runtime: RecordingRuntime) -> None:
    agent = contained(SimpleAgent(), mounts=["/"])
    with pytest.raises(ValueError, match="'/' cannot be mounted"):
        await agent.run("?", AgentContext(), driver_of(ScriptedWorld([])))
    [*_, failed] = [event async for event in driver_of(ScriptedWorld([])).run(agent, "?", AgentContext())]
    assert "/" not in str(getattr(failed, "error", "/"))
    assert runtime.calls == []


async def test_a_stopped_turn_leaves_no_container(runtime: RecordingRuntime) -> None:
    events = driver_of(ScriptedWorld([ScriptedReply("x|y|z")])).run(contained(SimpleAgent()), "?", AgentContext())
    async for event in events:
        if "Token" in repr(event):
            break
    assert len(runtime.running) == 1
    await events.aclose()
    assert runtime.running == set()


async def test_a_turn_that_is_stopped_while_code_runs_leaves_no_container(runtime: RecordingRuntime) -> None:
    world = ScriptedWorld([ScriptedReply("```python\nwhile True: pass\n```")])
    task = asyncio.create_task(contained(RLMAgent()).run("?", CONTEXT, driver_of(world)))
    while not world.effects:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runtime.running == set()


BAD_CODE: Final = {
    "while True: pass": "used more than 1 s of processor time",
    "import os; os._exit(0)": "ended unexpectedly",
    "import time; time.sleep(1e6)": None,
    "x = 'a' * 10**9": "MemoryError",
    "print('x' * 10**6)": None,
    "import socket; socket.socket()": "PermissionError",
}


@pytest.mark.parametrize("code", sampled([*BAD_CODE], 3))
async def test_bad_code_is_an_error_and_the_next_cell_works(
    runtime: RecordingRuntime, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnInterpreter.__init__, "__defaults__", (Limits(cell_cpu=1, cell_wall=30), time.time))
    world = ScriptedWorld(
        [ScriptedReply(f"```python\ny = 5\n```\n```python\n{code}\n```"), ScriptedReply("```python\nFINAL(y)\n```")]
    )
    result = await contained(RLMAgent()).run("?", CONTEXT, driver_of(world))
    assert result.content == "5"
    expected = BAD_CODE[code]
    if expected is not None:
        assert re.search(expected, json.dumps([call.content for call in result.tool_results]))


async def test_a_mount_can_be_read_by_code_but_not_written(runtime: RecordingRuntime, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a\n1\n2\n")
    code = f"import csv\nFINAL(sum(int(row['a']) for row in csv.DictReader(open('{tmp_path}/table.csv'))))"
    write = f"open('{tmp_path}/new', 'w')"
    world = ScriptedWorld([ScriptedReply(f"```python\n{write}\n```"), ScriptedReply(f"```python\n{code}\n```")])
    result = await contained(RLMAgent(), mounts=[str(tmp_path)]).run("?", CONTEXT, driver_of(world))
    assert result.content == "3"
    assert "PermissionError" in result.tool_results[0].content
    assert not (tmp_path / "new").exists()


async def test_the_secrets_are_not_in_the_repr() -> None:
    assert "hidden" not in repr(contained(SimpleAgent(), secrets={"KEY": "hidden"}))


async def test_a_message_with_half_a_pair_does_not_break_the_pipe(runtime: RecordingRuntime) -> None:
    context = AgentContext(conversation=(Message(Role.USER, "half \ud800"),))
    world = ScriptedWorld([ScriptedReply("fine \ud800")])
    assert (await contained(SimpleAgent()).run("\udfff", context, driver_of(world))).content == "fine ?"


CONTAINED: Final = AgentSpec(name="contained", model="talker", kind="rlm", container=ContainerSettings(timeout=60))


async def test_an_agent_of_a_file_answers_in_a_container_without_a_sandbox(runtime: RecordingRuntime) -> None:
    harness = make_engine_harness()
    harness.will_say(Message(Role.ASSISTANT, "```python\nFINAL(6 * 7)\n```"))
    reply = await harness.chat(scope_for(), CONTAINED, "?")
    assert reply.message.content == "42"
    assert len(runtime.runs) == 1


async def test_an_agent_of_a_file_is_refused_without_its_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    harness = make_engine_harness()
    with pytest.raises(SandboxUnavailable, match="it runs in a container, and docker is not installed"):
        harness.engine.check(scope_for(), CONTAINED)


@dataclass(frozen=True, kw_only=True)
class OwnForeignAgent(ForeignAgent):
    """Let a foreign agent work."""

    def foreign_run(self, input: str, context: AgentContext) -> ForeignRun:
        return self.run_of("openhands", input, context)


ASK_FOR_A_FOREIGN_AGENT: Final = """
payload = json.loads(line)
spec = {"type": "ForeignRun", "runner": "openhands", "prompt": payload["prompt"], "system_prompt": "",
    "workspace": payload["params"]["workspace"], "timeout": 1800, **json.loads(%r)}
effect({"type": "RunForeign", "spec": spec})
answer({"content": json.loads(sys.stdin.readline())["result"]["content"]})
"""


@pytest.mark.parametrize("change", [{}, {"workspace": "/etc"}, {"prompt": "rm"}, {"allowed_tools": []}, {"api_key": "x"}])
async def test_a_container_gets_only_its_own_foreign_agent(
    runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], tmp_path: Path
) -> None:
    monkeypatch.setitem(KINDS._registered, "sandboxed_foreign", OwnForeignAgent)
    runtime.contain(
        PRELUDE.replace("sys.stdin.readline()", "line = sys.stdin.readline()") + ASK_FOR_A_FOREIGN_AGENT % json.dumps(change)
    )
    asked: list[ForeignRun] = []

    async def run_foreign(spec: ForeignRun) -> ForeignResult:
        asked.append(spec)
        return ForeignResult("done")

    driver = driver_of(ScriptedWorld([]))
    driver.run_foreign = run_foreign
    agent = contained(OwnForeignAgent(workspace="/own", api_key="hidden-key"), workspace=str(tmp_path))
    if change:
        with pytest.raises(UpstreamError, match="a foreign agent that its kind does not use"):
            await agent.run("?", AgentContext(), driver)
        assert asked == []
    else:
        assert (await agent.run("?", AgentContext(), driver)).content == "done"
        assert [(spec.workspace, spec.api_key) for spec in asked] == [(str(tmp_path), "hidden-key")]
