"""What the predecessor's documentation says about SandboxedAgent and ContainerRunner, and the defaults of all kinds."""

import asyncio
import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

import pytest

from spass.agents.kinds import KINDS, AgentContext, SimpleAgent, ToolUsingAgent
from spass.agents.kinds.monitor_operative import MONITOR_SYSTEM_PROMPT
from spass.agents.kinds.rlm import RLM_SYSTEM_PROMPT
from spass.agents.sandboxed import SandboxedAgent
from spass.sandbox import ContainerRunner
from tests.contained_kinds import driver_of
from tests.functions.gateway import Gateway
from tests.recording_runtime import RecordingRuntime
from tests.unit.agents.driver_harness import ScriptedReply, ScriptedWorld

# The tables of constructor parameters. What they call engine, model, tools and bus belongs to the driver, and api_key is for
# Python alone. max_sub_calls and the timeout of openhands are the page's own.
_SAMPLING: Final = {"temperature": 0.7, "max_tokens": 1024, "system_prompt": ""}
_TOOL_USING: Final = {**_SAMPLING, "max_turns": 10}
_OPERATOR: Final = {"temperature": 0.3, "max_tokens": 2048, "max_turns": 20, "system_prompt": "", "operator_id": None}
DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "simple": {**_SAMPLING, "max_turns": 1},
    "orchestrator": {**_TOOL_USING, "mode": "function_calling"},
    "native_react": _TOOL_USING,
    "react": _TOOL_USING,
    "native_openhands": {**_TOOL_USING, "max_turns": 3, "max_tokens": 2048},
    "rlm": {
        **_TOOL_USING,
        "max_tokens": 2048,
        "sub_model": None,
        "sub_temperature": 0.3,
        "sub_max_tokens": 1024,
        "max_output_chars": 10_000,
        "max_sub_calls": 100,
        "system_prompt": RLM_SYSTEM_PROMPT,
    },
    "openhands": {**_SAMPLING, "workspace": "", "timeout": 1800},
    "claude_code": {**_SAMPLING, "workspace": "", "session_id": "", "allowed_tools": None, "timeout": 300},
    "operative": _OPERATOR,
    "monitor_operative": {
        **_OPERATOR,
        "max_turns": 25,
        "max_tokens": 4096,
        "system_prompt": MONITOR_SYSTEM_PROMPT,
        "memory_extraction": "causality_graph",
        "observation_compression": "summarize",
        "retrieval_strategy": "hybrid_with_self_eval",
        "task_decomposition": "phased",
    },
}
CONSTRUCTORS: Final[dict[type[Any], dict[str, object]]] = {
    SandboxedAgent: {
        "agent": MISSING,
        "runner": MISSING,
        "engine": None,
        "model": "",
        "workspace": "",
        "mounts": [],
        "secrets": {},
        "bus": None,
    },
    ContainerRunner: {
        "image": "spass-sandbox:latest",
        "timeout": 300,
        "mount_allowlist_path": "",
        "max_concurrent": 5,
        "runtime": "docker",
    },
}


def defaults_of(cls: type[Any]) -> dict[str, object]:
    """Return the defaults of what a constructor accepts."""
    return {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(cls)
        if field.init
    }


@pytest.mark.parametrize("key", [key for key, defaults in DEFAULTS.items() if "max_turns" in defaults and key != "simple"])
def test_kinds_with_a_limit_of_turns_extend_the_tool_using_agent(key: str) -> None:
    assert issubclass(KINDS.get(key), ToolUsingAgent)


def test_the_defaults_of_all_kinds_are_those_of_the_tables(gateway: Gateway) -> None:
    assert {key: defaults_of(KINDS.get(key)) for key in DEFAULTS} == DEFAULTS
    listed = {
        kind["key"]: {name: parameter["default"] for name, parameter in kind["params"]["properties"].items()}
        for kind in gateway.send("GET", "/v1/kinds").json["kinds"]
    }
    assert listed == {
        key: {name: value for name, value in defaults.items() if name != "system_prompt"} for key, defaults in DEFAULTS.items()
    }


@pytest.mark.parametrize("cls", CONSTRUCTORS)
def test_the_constructors_have_the_defaults_of_the_tables(cls: type[Any]) -> None:
    assert defaults_of(cls) == CONSTRUCTORS[cls]


# --- SandboxedAgent and ContainerRunner ---


def test_the_example_of_a_sandboxed_agent_runs(runtime: RecordingRuntime, tmp_path: Path) -> None:
    data, allow_list = tmp_path / "data", tmp_path / "mount_allowlist.json"
    data.mkdir()
    blocked = [".ssh", ".env", "*.pem", "*.key"]
    allow_list.write_text(json.dumps({"roots": [{"path": str(data), "read_only": True}], "blocked_patterns": blocked}))
    runner = ContainerRunner(image="spass-sandbox:latest", timeout=60, mount_allowlist_path=str(allow_list))
    agent = SandboxedAgent(agent=SimpleAgent(), runner=runner, mounts=[str(data)], secrets={"KEY": "a secret"})
    question = f"Summarize the CSV files in {data}"
    result = asyncio.run(agent.run(question, AgentContext(), driver_of(ScriptedWorld([ScriptedReply("Two rows.")]))))
    assert (result.content, result.turns) == ("Two rows.", 1)
    (run,) = runtime.runs
    arguments = " ".join(run.arguments)
    assert arguments.startswith("run --rm ")
    assert "--network none" in arguments
    assert f"-v {data}:{data}:ro" in arguments
    assert "a secret" not in arguments + str(run.environment)
    assert runtime.running == set()


@pytest.mark.parametrize("name", [".ssh", ".env", "server.pem", "server.key", ".aws", "credentials.json", ".kube", "gcloud"])
def test_blocked_paths_are_refused_without_an_allow_list(runtime: RecordingRuntime, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    agent = SandboxedAgent(agent=SimpleAgent(), runner=ContainerRunner(), mounts=[str(tmp_path / name)])
    with pytest.raises(ValueError, match="cannot be mounted"):
        asyncio.run(agent.run("?", AgentContext(), driver_of(ScriptedWorld([]))))
    assert runtime.calls == []


def test_a_runner_alone_answers_with_what_is_between_the_sentinels(runtime: RecordingRuntime) -> None:
    lines = ["noise", "---SPASS_OUTPUT_START---", '{"content": "hello"}', "---SPASS_OUTPUT_END---"]
    runtime.contain(f"import sys\nsys.stdin.readline()\nprint({chr(10).join(lines)!r})")
    assert asyncio.run(ContainerRunner().run({"prompt": "Hi"})) == {"content": "hello"}


@pytest.mark.parametrize("runtime_name", ["docker", "podman"])
def test_a_runtime_that_is_not_on_the_path_raises_a_runtime_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_name: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    agent = SandboxedAgent(agent=SimpleAgent(), runner=ContainerRunner(runtime=runtime_name))
    with pytest.raises(RuntimeError, match=runtime_name):
        asyncio.run(agent.run("?", AgentContext(), driver_of(ScriptedWorld([]))))
