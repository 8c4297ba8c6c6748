"""The Claude Code runner: what the SDK is given, what is read from it, and what a run leaves behind. The SDK is a stand-in."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spass.core.errors import InvalidRequest, UpstreamError, UpstreamTimeout
from spass.core.messages import Json
from tests.unit.sandbox.foreign.stand_ins import ANTHROPIC_KEY, StandIns
from tests.unit.sandbox.process_list import wait_for_processes

pytestmark = pytest.mark.anyio

REPORT = """
const { canUseTool, stderr, ...rest } = options;
const allowed = await canUseTool("Bash", { command: "ls" });
return [end(JSON.stringify({ ...rest, allowed, process: process.env, folder: process.cwd(), arguments: process.argv }))];
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path)


async def run(stand_ins: StandIns, code: str, owner: str = "t", **fields: object) -> dict[str, Json]:
    return dict(await stand_ins.foreign_agents().run(stand_ins.spec("claude_code", code, **fields), model="small", owner=owner))


async def report(stand_ins: StandIns, owner: str = "t", **fields: object) -> Any:
    answer = await run(stand_ins, REPORT, owner, **fields)
    return json.loads(str(answer["content"]).replace("[…]", "KEY"))


async def test_the_sdk_loads_no_settings_and_asks_nobody(stand_ins: StandIns) -> None:
    got = await report(stand_ins)
    assert got["cwd"] == got["folder"] == str(stand_ins.workspace.resolve())
    assert (got["settingSources"], got["strictMcpConfig"], got["permissionMode"]) == ([], True, "default")
    assert got["allowed"] == {"behavior": "allow", "updatedInput": {"command": "ls"}}
    assert got["disallowedTools"] == ["AskUserQuestion"]
    assert got["systemPrompt"] == {"type": "preset", "preset": "claude_code"}
    assert not {"tools", "allowedTools", "resume", "model"} & set(got)


async def test_tools_session_and_system_prompt_are_options_of_the_sdk(stand_ins: StandIns) -> None:
    session = "3f0c5a1e-0000-4000-8000-000000000000"
    got = await report(stand_ins, allowed_tools=("Read", "Bash"), session_id=session, system_prompt="Be brief.")
    assert (got["tools"], got["resume"], got["systemPrompt"]["append"]) == (["Read", "Bash"], session, "Be brief.")
    assert (await report(stand_ins, allowed_tools=()))["tools"] == []


async def test_a_run_has_one_key_and_none_of_the_gateways_variables(stand_ins: StandIns) -> None:
    got = await report(stand_ins)
    assert set(got["process"]) <= {"PATH", "HOME", "ANTHROPIC_API_KEY", "PWD", "SHLVL", "_", "OLDPWD"}
    assert set(got["env"]) == {*got["process"], "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"}
    assert not any(ANTHROPIC_KEY in argument for argument in got["arguments"])
    foreign_agents = stand_ins.foreign_agents(stand_ins.environment(ANTHROPIC_BASE_URL="http://127.0.0.1:9"))
    answer = await foreign_agents.run(stand_ins.spec("claude_code", REPORT), model="small", owner="t")
    assert json.loads(str(answer["content"]))["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"


async def test_sessions_stay_in_a_home_per_owner(stand_ins: StandIns) -> None:
    homes = [(await report(stand_ins, owner))["process"]["HOME"] for owner in ("t/ada", "t/bob", "t/ada")]
    assert homes[0] == homes[2] != homes[1]
    assert all(Path(home).stat().st_mode & 0o777 == 0o700 for home in homes)  # noqa: ASYNC240
    assert str(stand_ins.folder / "home") not in homes


async def test_the_result_is_the_answer_with_tool_results_and_metadata(stand_ins: StandIns) -> None:
    code = """
        return [say("I look."), call("a", "Bash", {command: "ls"}), result("a", "a.txt"), call("b", "Read", {}),
          result("b", [{type: "text", text: "no such "}, {type: "text", text: "file"}], true), result("unknown", "x"),
          {...call("c", "Grep", {}), parent_tool_use_id: "b"}, say("It has one file."), end("It has one file.")];
    """
    assert await run(stand_ins, code) == {
        "content": "It has one file.",
        "tool_results": [
            {"tool_name": "Bash", "arguments": '{"command":"ls"}', "content": "a.txt", "success": True},
            {"tool_name": "Read", "arguments": "{}", "content": "no such file", "success": False},
        ],
        "metadata": {
            "session_id": "0a-1",
            "num_turns": 2,
            "usage": {"prompt_tokens": 25, "completion_tokens": 3},
            "models": ["claude-x"],
            "cost_usd": 0.5,
        },
    }


async def test_the_cost_of_a_continued_session_is_that_of_the_run(stand_ins: StandIns) -> None:
    async def cost(total: float, owner: str = "t") -> Json:
        metadata = (await run(stand_ins, f'return [end("x", {{total_cost_usd: {total}}})]', owner))["metadata"]
        return metadata["cost_usd"] if isinstance(metadata, dict) else None

    assert [await cost(0.5), await cost(0.75), await cost(0.75), await cost(0.75, "other")] == [0.5, 0.25, 0, 0.75]


async def test_only_the_runner_writes_the_answer(stand_ins: StandIns) -> None:
    code = """
        const text = "---SPASS_OUTPUT_START---\\n{}\\n---SPASS_OUTPUT_END---\\n";
        console.log(text);
        process.stdout.write(text);
        return [end("half \\ud800 pair")];
    """
    assert (await run(stand_ins, code))["content"] == "half \N{REPLACEMENT CHARACTER} pair"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("throw new Error('The model\\n refuses.')", "Claude Code ended with exit code 1: The model refuses."),
        ("throw undefined", "Claude Code ended with exit code 1: undefined."),
        ("return [say('Hi')]", "Claude Code ended with exit code 1: The Claude Agent SDK ended without a result."),
        (
            "return [end('Bad key', {is_error: true, subtype: 'success'})]",
            "Claude Code ended with exit code 1: Bad key.",
        ),
        (
            "return [end('', {subtype: 'error_during_execution', errors: ['No conversation found']})]",
            "Claude Code ended with exit code 1: error_during_execution: No conversation found.",
        ),
        ("process.exit(0)", "Claude Code wrote no answer."),
        ("process.exit(3)", "Claude Code ended with exit code 3."),
        ("process.kill(process.pid, 'SIGKILL')", "Claude Code ended with exit code 137."),
    ],
)
async def test_a_failure_of_the_sdk_is_one_error(stand_ins: StandIns, code: str, message: str) -> None:
    with pytest.raises(UpstreamError) as failure:
        await run(stand_ins, code)
    assert failure.value.message == message


async def test_no_key_is_in_an_error_or_an_answer(stand_ins: StandIns) -> None:
    with pytest.raises(UpstreamError) as failure:
        await run(stand_ins, "throw new Error(options.env.ANTHROPIC_API_KEY)")
    assert ANTHROPIC_KEY not in failure.value.message
    code = "const key = options.env.ANTHROPIC_API_KEY; return [call('a', key, {key}), result('a', key), end(key)]"
    assert ANTHROPIC_KEY not in json.dumps(await run(stand_ins, code))


@pytest.mark.parametrize("session_id", ["../other", "--help", "0a-1 0a-1", "x" * 65, "ä" * 36])
async def test_what_is_not_the_id_of_a_session_is_refused(stand_ins: StandIns, session_id: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await run(stand_ins, "return [end('x')]", session_id=session_id)
    assert refusal.value.param == "params.session_id"
    assert stand_ins.installations == []


START = """
    const { spawn, spawnSync } = require("node:child_process");
    for (const detached of [false, true]) spawn("sh", ["-c", "sleep 60; : {mark}"], { detached, stdio: "ignore" }).unref();
    spawnSync("sh", ["-c", "(setsid sh -c 'sleep 60; : {mark}' &)"], { stdio: "ignore" });
"""


@pytest.mark.parametrize("end", ["await new Promise((wake) => setTimeout(wake, 60000))", "return [end('Done.')]"])
async def test_a_run_leaves_no_process(stand_ins: StandIns, end: str) -> None:
    mark = uuid4().hex
    await run(stand_ins, "return [end('x')]")  # the installation is not part of the time
    spec = stand_ins.spec("claude_code", START.replace("{mark}", mark) + end, timeout=2)
    if "Done" in end:
        assert (await stand_ins.foreign_agents().run(spec, model="m", owner="t"))["content"] == "Done."
    else:
        with pytest.raises(UpstreamTimeout, match="Claude Code did not end within 2 seconds"):
            await stand_ins.foreign_agents().run(spec, model="m", owner="t")
    await asyncio.to_thread(wait_for_processes, mark, 0)
