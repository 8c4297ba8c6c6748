"""The OpenHands runner: what the SDK is given, what is read from it, and what a run leaves behind. The SDK is a stand-in."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spass.core.errors import UpstreamError, UpstreamTimeout
from tests.unit.sandbox.foreign.stand_ins import LLM_KEY, StandIns
from tests.unit.sandbox.process_list import wait_for_processes

pytestmark = pytest.mark.anyio

REPORT = """
import json, os, sys
llm = conversation.agent.llm.options
tools = [(tool.name, tool.params) for tool in conversation.agent.tools]
context = conversation.agent.agent_context
home = os.environ["HOME"]
conversation.say(json.dumps({
    "llm": llm, "tools": tools, "workspace": conversation.workspace, "folder": os.getcwd(),
    "suffix": context and context.system_message_suffix, "environment": dict(os.environ), "home": os.listdir(home),
    "arguments": sys.argv,
}))
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path)


async def report(stand_ins: StandIns, variables: dict[str, str] | None = None, **fields: object) -> Any:
    foreign_agents = stand_ins.foreign_agents(stand_ins.environment(**(variables or {})))
    answer = await foreign_agents.run(stand_ins.spec("openhands", REPORT, **fields), model="gpt-5", owner="t")
    return json.loads(str(answer["content"]).replace("[…]", "KEY"))


async def test_the_sdk_gets_model_key_tools_workspace_and_prompt(stand_ins: StandIns) -> None:
    got = await report(stand_ins, system_prompt="Be brief.", temperature=0.7, max_tokens=1024)
    assert got["llm"] == {
        "model": "gpt-5",
        "api_key": "KEY",
        "base_url": None,
        "temperature": 0.7,
        "max_output_tokens": 1024,
        "usage_id": "agent",
    }
    assert got["tools"] == [["terminal", {"terminal_type": "subprocess"}], ["file_editor", None]]
    assert got["workspace"] == got["folder"] == str(stand_ins.workspace.resolve())
    assert got["suffix"] == "Be brief."


@pytest.mark.parametrize(("model", "name"), [("gpt-5", "openai/gpt-5"), ("anthropic/claude", "anthropic/claude")])
async def test_at_a_base_url_a_name_without_provider_is_one_of_openais_protocol(
    stand_ins: StandIns, model: str, name: str
) -> None:
    foreign_agents = stand_ins.foreign_agents(stand_ins.environment(LLM_BASE_URL="http://127.0.0.1:9/v1"))
    answer = await foreign_agents.run(stand_ins.spec("openhands", REPORT), model=model, owner="t")
    llm = json.loads(str(answer["content"]).replace("[…]", "KEY"))["llm"]
    assert (llm["model"], llm["base_url"]) == (name, "http://127.0.0.1:9/v1")


async def test_a_run_has_a_home_of_its_own_and_none_of_the_gateways_variables(stand_ins: StandIns) -> None:
    first, second = await report(stand_ins), await report(stand_ins)
    added = {"OPENHANDS_SUPPRESS_BANNER", "LITELLM_LOCAL_MODEL_COST_MAP", "PYTHONPATH", "PWD", "LC_CTYPE", "SHLVL", "_"}
    assert set(first["environment"]) <= {"PATH", "HOME"} | added, "the key is not for the commands of the agent"
    homes = {got["environment"]["HOME"] for got in (first, second)}
    assert len(homes) == 2
    assert not homes & {str(stand_ins.folder / "home"), str(Path.home())}
    assert first["home"] == []
    assert not any(Path(home).exists() for home in homes)  # noqa: ASYNC240
    assert not any(LLM_KEY in argument for argument in first["arguments"])


async def test_a_key_of_the_call_replaces_that_of_the_process(stand_ins: StandIns) -> None:
    code = "conversation.say(str(len(conversation.agent.llm.options['api_key'])))"
    foreign_agents = stand_ins.foreign_agents(stand_ins.environment(LLM_API_KEY=""))
    answer = await foreign_agents.run(stand_ins.spec("openhands", code, api_key="k" * 33), model="m", owner="t")
    assert answer["content"] == "33"


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("conversation.say('a'); conversation.say('b', 'c')", "bc"),
        ("conversation.say('a'); conversation.finish('I am done.')", "I am done."),
        ("conversation.finish('early'); conversation.say('late')", "late"),
        ("conversation.say('I list.'); conversation.call('terminal', '{}', 'x')", "I list."),
        ("pass", ""),
        ("conversation.say('half \\ud800 pair')", "half ? pair"),
        ("print('---SPASS_OUTPUT_START---\\n{}\\n---SPASS_OUTPUT_END---', flush=True); conversation.say('a')", "a"),
        ("import os; os.write(1, b'---SPASS_OUTPUT_START---\\n{}\\n---SPASS_OUTPUT_END---\\n'); conversation.say('a')", "a"),
        (
            "import os; os.system('echo ---SPASS_OUTPUT_START---; echo {}; echo ---SPASS_OUTPUT_END---'); conversation.say('a')",
            "a",
        ),
    ],
)
async def test_the_answer_is_the_agents_last_message(stand_ins: StandIns, code: str, content: str) -> None:
    answer = await stand_ins.foreign_agents().run(stand_ins.spec("openhands", code), model="m", owner="t")
    assert answer["content"] == content


async def test_tool_results_and_what_the_sdk_reports_are_returned(stand_ins: StandIns) -> None:
    code = """
        conversation.call("terminal", '{"command": "ls"}', "a.txt")
        conversation.call("file_editor", '{}', "no such file", failed=True)
        conversation.call("terminal", '{}', "x" * 9000)
        conversation.finish("Done.")
    """
    answer = await stand_ins.foreign_agents().run(stand_ins.spec("openhands", code), model="m", owner="t")
    results = answer["tool_results"]
    assert isinstance(results, list)
    assert results[:2] == [
        {"tool_name": "terminal", "arguments": '{"command": "ls"}', "content": "a.txt", "success": True},
        {"tool_name": "file_editor", "arguments": "{}", "content": "no such file", "success": False},
    ]
    (long,) = results[2:]
    assert isinstance(long, dict)
    assert len(str(long["content"])) == 4000
    usage = {"prompt_tokens": 30, "completion_tokens": 4}
    assert answer["metadata"] == {"status": "finished", "usage": usage, "cost_usd": 0.25}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('The model\\n refuses.')", "OpenHands ended with exit code 1: ValueError: The model refuses."),
        ("raise SystemExit(3)", "OpenHands ended with exit code 3."),
        ("import os; os._exit(0)", "OpenHands wrote no answer."),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "OpenHands ended with exit code 137."),
        ("conversation.metrics.accumulated_cost = object()", "OpenHands ended with exit code 1: TypeError: "),
    ],
)
async def test_a_failure_of_the_sdk_is_one_error(stand_ins: StandIns, code: str, message: str) -> None:
    with pytest.raises(UpstreamError) as failure:
        await stand_ins.foreign_agents().run(stand_ins.spec("openhands", code), model="m", owner="t")
    assert failure.value.message.startswith(message)


async def test_no_key_is_in_an_error_or_an_answer(stand_ins: StandIns) -> None:
    leak = "conversation.agent.llm.options['api_key']"
    with pytest.raises(UpstreamError) as failure:
        await stand_ins.foreign_agents().run(stand_ins.spec("openhands", f"raise ValueError({leak})"), model="m", owner="t")
    assert LLM_KEY not in failure.value.message
    code = (
        f"conversation.call({leak}, {leak}, {leak}); conversation.say({leak}); conversation.state.execution_status.value = {leak}"
    )
    answer = await stand_ins.foreign_agents().run(stand_ins.spec("openhands", code), model="m", owner="t")
    assert LLM_KEY not in json.dumps(answer)
    assert str(answer["content"]).endswith("[…]")


START = """
    import subprocess, sys, time
    for apart in (False, True):
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)", "{mark}"], start_new_session=apart)
    # one more that loses its parent, as a daemon does
    subprocess.run([sys.executable, "-S", "-c", "import os, time; os.fork() or (os.setsid(), time.sleep(60))", "{mark}"])
"""


async def test_timeout_leaves_no_process_not_even_in_a_session_of_its_own(stand_ins: StandIns) -> None:
    mark = uuid4().hex
    code = START.format(mark=mark) + "    time.sleep(60)"
    with pytest.raises(UpstreamTimeout, match="OpenHands did not end within 3 seconds"):
        await stand_ins.foreign_agents().run(stand_ins.spec("openhands", code, timeout=3), model="m", owner="t")
    await asyncio.to_thread(wait_for_processes, mark, 0)


async def test_what_an_agent_left_running_ends_with_its_run(stand_ins: StandIns) -> None:
    mark = uuid4().hex
    code = START.format(mark=mark) + "    conversation.say('Done.')"
    answer = await stand_ins.foreign_agents().run(stand_ins.spec("openhands", code), model="m", owner="t")
    assert answer["content"] == "Done."
    await asyncio.to_thread(wait_for_processes, mark, 0)


async def test_a_stopped_run_leaves_no_process(stand_ins: StandIns) -> None:
    mark = uuid4().hex
    code = START.format(mark=mark) + "    time.sleep(60)"
    task = asyncio.create_task(stand_ins.foreign_agents().run(stand_ins.spec("openhands", code), model="m", owner="t"))
    await asyncio.to_thread(wait_for_processes, mark, 3, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_for_processes, mark, 0)
