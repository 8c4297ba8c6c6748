"""Statements of the predecessor about OpenHandsAgent and ClaudeCodeAgent, with which this gateway agrees."""

import asyncio
from typing import Any

import pytest

from spass.agents.driver import Driver
from spass.agents.kinds import KINDS, AgentContext, AgentResult, BaseAgent
from spass.agents.kinds.claude_code import ClaudeCodeAgent
from spass.agents.kinds.openhands import OpenHandsAgent
from spass.core.effects import ForeignResult, ForeignRun
from tests.functions.gateway import Gateway
from tests.unit.agents.driver_harness import ScriptedWorld
from tests.unit.sandbox.foreign.stand_ins import StandIns


@pytest.mark.parametrize("kind", [OpenHandsAgent, ClaudeCodeAgent])
def test_they_extend_the_base_agent_directly_and_accept_no_tools(kind: type[BaseAgent]) -> None:
    assert not hasattr(kind, "max_turns")
    assert not kind.accepts_tools
    assert KINDS.contains(str(kind.needs))
    assert KINDS.get(str(kind.needs)) is kind


@pytest.mark.parametrize(("kind", "code"), [("openhands", "conversation.say('Done.')"), ("claude_code", "return [end('Done.')]")])
def test_tools_of_the_gateway_are_ignored(gateway: Gateway, stand_ins: StandIns, kind: str, code: str) -> None:
    params = {"workspace": str(stand_ins.workspace)}
    body = {"input": code, "agent": kind, "tools": ["calculator", "think"], "params": params}
    answer = gateway.send("POST", "/v1/ask", body=body).json
    assert (answer["content"], answer["turns"], answer["tool_results"]) == ("Done.", 1, [])
    assert gateway.model.requests == []


def test_the_example_of_claude_code_runs() -> None:
    specs = []

    async def run_foreign(spec: ForeignRun) -> ForeignResult:
        specs.append(spec)
        return ForeignResult("I added them.", metadata={"session_id": "s"})

    world = ScriptedWorld([])
    driver = Driver(world, world.call_tools, world.scope, run_foreign=run_foreign)
    tools: Any = ["Read", "Write", "Bash"]  # a list, as in the example
    agent = ClaudeCodeAgent(workspace="/path/to/project", allowed_tools=tools, timeout=120)
    result = asyncio.run(agent.run("Add type hints to all functions in utils.py", AgentContext(), driver))
    assert result == AgentResult("I added them.", turns=1, metadata={"session_id": "s"})
    prompt = "Add type hints to all functions in utils.py"
    assert specs == [ForeignRun("claude_code", prompt, "", "/path/to/project", 120, ("Read", "Write", "Bash"))]


def test_the_key_is_that_of_the_environment_or_of_the_call(gateway: Gateway, stand_ins: StandIns) -> None:
    foreign_agents = stand_ins.foreign_agents(stand_ins.environment(ANTHROPIC_API_KEY="k" * 21))
    code = "return [end(String(options.env.ANTHROPIC_API_KEY.length))]"
    for key, length in (("", "21"), ("x" * 34, "34")):
        answer = gateway.run(foreign_agents.run(stand_ins.spec("claude_code", code, api_key=key), model="", owner="t"))
        assert answer["content"] == length
