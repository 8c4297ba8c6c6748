"""Kinds in containers of the image ``spass-sandbox``: what they do in this process, without a network."""

import asyncio
import json
from pathlib import Path

import pytest

from spass.agents.kinds import AgentContext
from spass.agents.kinds.rlm import RLMAgent
from spass.agents.kinds.simple import SimpleAgent
from spass.agents.sandboxed import SandboxedAgent
from spass.core.errors import UpstreamTimeout
from spass.sandbox import ContainerRunner
from spass.sandbox.launchers import LaunchedSandbox
from spass.sandbox.process import ProcessLauncher
from tests.contained_kinds import AGENTS, CONTEXT, TYPICAL, driver_of, events_of
from tests.containers.conftest import containers
from tests.unit.agents.driver_harness import ScriptedReply, ScriptedWorld

pytestmark = pytest.mark.anyio


@pytest.fixture
def runner(runtime: str, image: str) -> ContainerRunner:
    return ContainerRunner(image=image, runtime=runtime, timeout=60)


def code(text: str) -> ScriptedReply:
    return ScriptedReply(f"```python\n{text}\n```")


async def test_a_simple_agent_answers_without_a_network(runner: ContainerRunner) -> None:
    world = ScriptedWorld([ScriptedReply("Hello.")])
    result = await SandboxedAgent(agent=SimpleAgent(), runner=runner).run("Hi", AgentContext(), driver_of(world))
    assert (result.content, result.turns) == ("Hello.", 1)
    assert [message.content for message in world.effects[0].messages] == ["Hi"]


async def test_the_engine_and_the_model_are_replaced(runner: ContainerRunner) -> None:
    own, other = ScriptedWorld([ScriptedReply("own")]), ScriptedWorld([ScriptedReply("other")])
    agent = SandboxedAgent(agent=SimpleAgent(), runner=runner, engine=driver_of(other), model="large")
    result = await agent.run("?", AgentContext(), driver_of(own))
    assert (result.content, own.effects) == ("other", [])
    assert [effect.model for effect in other.effects] == ["large"]


async def test_a_run_that_is_out_of_time_leaves_no_container(runtime: str, image: str) -> None:
    runner = ContainerRunner(image=image, runtime=runtime, timeout=1)
    agent = SandboxedAgent(agent=RLMAgent(), runner=runner)
    with pytest.raises(UpstreamTimeout):
        await agent.run("?", CONTEXT, driver_of(ScriptedWorld([code("while True: pass")])))
    assert containers(runtime) == []


async def test_six_agents_at_once_are_never_six_containers(runtime: str, image: str) -> None:
    runner = ContainerRunner(image=image, runtime=runtime, max_concurrent=5)
    most = 0

    async def run() -> str:
        world = ScriptedWorld([code("FINAL(sum(range(10**7)) > 0)")])
        return (await SandboxedAgent(agent=RLMAgent(), runner=runner).run("?", CONTEXT, driver_of(world))).content

    tasks = [asyncio.create_task(run()) for _ in range(6)]
    while not all(task.done() for task in tasks):
        most = max(most, len(containers(runtime)))
        await asyncio.sleep(0.05)
    assert [await task for task in tasks] == ["true"] * 6
    assert 1 < most <= 5


@pytest.mark.parametrize(("kind", "turn"), TYPICAL)
async def test_a_kind_gives_the_same_events_as_in_process(runner: ContainerRunner, kind: str, turn: str) -> None:
    agent = AGENTS[kind]()
    in_process = await events_of(agent, turn, sandbox=LaunchedSandbox("process", ProcessLauncher))
    assert await events_of(SandboxedAgent(agent=agent, runner=runner), turn) == in_process


async def test_code_sums_a_table_in_a_mount_and_writes_only_where_it_may(runtime: str, image: str, tmp_path: Path) -> None:
    data, allow_list = tmp_path / "data", tmp_path / "allow.json"
    data.mkdir()
    (data / "table.csv").write_text("item,price\na,1.5\nb,2.5\n")
    allow_list.write_text(json.dumps({"roots": [{"path": str(data), "read_only": False}]}))
    runner = ContainerRunner(image=image, runtime=runtime, mount_allowlist_path=str(allow_list))
    script = [
        code(f"import csv\ntotal = sum(float(row['price']) for row in csv.DictReader(open('{data}/table.csv')))"),
        code(f"open('{data}/total', 'w').write(str(total))"),
        code("FINAL(total)"),
    ]
    for mount, files in ((str(data), {"table.csv"}), (f"{data}:rw", {"table.csv", "total"})):
        agent = SandboxedAgent(agent=RLMAgent(), runner=runner, mounts=[mount], workspace=str(data))
        result = await agent.run("Sum the prices", AgentContext(), driver_of(ScriptedWorld(script)))
        assert result.content == "4.0"
        assert {path.name for path in data.iterdir()} == files


async def test_code_sees_no_secret_no_network_and_no_other_file(runner: ContainerRunner) -> None:
    attack = """
found = []
for path in ("/proc/1/environ", "/proc/1/mem", "/proc/1/cmdline", "/proc/self/environ", "/proc/1/fd/0", "/etc", "/"):
    try:
        import os
        found.append(os.listdir(path) if path in ("/etc", "/") else open(path, "rb").read(9999))
    except OSError as error:
        pass
try:
    import socket
    found.append(socket.create_connection(("127.0.0.1", 80), 1))
except OSError:
    pass
FINAL(repr(found))
"""
    agent = SandboxedAgent(agent=RLMAgent(), runner=runner, secrets={"KEY": "hidden-secret"})
    result = await agent.run("?", AgentContext(), driver_of(ScriptedWorld([code(attack)])))
    assert result.content == "[]"


async def test_bad_code_is_an_error_and_the_next_cell_works(runner: ContainerRunner) -> None:
    script = [code("x = 5"), code("import os; os._exit(1)"), code("y = 'a' * 10**9"), code("FINAL(x)")]
    result = await SandboxedAgent(agent=RLMAgent(), runner=runner).run("?", CONTEXT, driver_of(ScriptedWorld(script)))
    assert result.content == "5"
    assert "MemoryError" in result.tool_results[2].content


async def test_a_stopped_turn_leaves_no_container_within_two_seconds(runtime: str, runner: ContainerRunner) -> None:
    world = ScriptedWorld([code("while True: pass")])
    agent = SandboxedAgent(agent=RLMAgent(), runner=runner)
    task = asyncio.create_task(agent.run("?", CONTEXT, driver_of(world)))
    while not (world.effects and containers(runtime)):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert containers(runtime) == []


async def test_the_default_image_alone_says_what_is_missing(runner: ContainerRunner) -> None:
    assert await runner.run({"prompt": "x"}) == {"type": "Failure", "message": "The payload names no agent_id."}
