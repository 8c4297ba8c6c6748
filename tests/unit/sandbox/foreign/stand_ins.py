"""Small stand-ins of the two SDKs, of Node and of npm, in a folder of their own.

The stand-ins do what the prompt says: for OpenHands it is Python, for the Claude Agent SDK it is JavaScript.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from spass.core.effects import ForeignRun, ForeignRunner
from spass.sandbox.foreign.service import ForeignAgents

LLM_KEY = "sk-llm-key-0123456789"
ANTHROPIC_KEY = "sk-anthropic-key-0123456789"

_SITE = """
import sys
sys.version_info = (3, 12, 4, "final", 0)
"""
_OPENHANDS = '''
"""The part of openhands.sdk 1.58 that the runner uses."""

from types import SimpleNamespace


class LLM:
    def __init__(self, **options):
        self.options = options


class Tool:
    def __init__(self, name, params=None):
        self.name, self.params = name, params


class AgentContext:
    def __init__(self, system_message_suffix=None):
        self.system_message_suffix = system_message_suffix


class Agent:
    def __init__(self, llm, tools, agent_context=None):
        self.llm, self.tools, self.agent_context = llm, tools, agent_context


def text(*parts):
    return [SimpleNamespace(text=part) for part in parts]


class Conversation:
    def __init__(self, agent, workspace, visualizer):
        self.agent, self.workspace, self.prompt = agent, workspace, ""
        self.state = SimpleNamespace(events=[], execution_status=SimpleNamespace(value="finished"))
        usage = SimpleNamespace(prompt_tokens=30, completion_tokens=4)
        metrics = SimpleNamespace(accumulated_cost=0.25, accumulated_token_usage=usage)
        self.metrics = metrics
        self.conversation_stats = SimpleNamespace(get_combined_metrics=lambda: metrics)
        self.closed = False

    def send_message(self, prompt):
        self.prompt = prompt
        self.state.events.append(SimpleNamespace(source="user", llm_message=SimpleNamespace(content=text(prompt))))

    def run(self):
        exec(self.prompt, {"conversation": self})

    def say(self, *parts):
        self.state.events.append(SimpleNamespace(source="agent", llm_message=SimpleNamespace(content=text(*parts))))

    def finish(self, message):
        action = SimpleNamespace(message=message)
        self.state.events.append(SimpleNamespace(source="agent", tool_name="finish", tool_call_id="f", action=action))

    def call(self, tool, arguments, result, failed=False):
        call = f"c{len(self.state.events)}"
        self.state.events.append(SimpleNamespace(
            source="agent", tool_name=tool, tool_call_id=call, action=SimpleNamespace(),
            tool_call=SimpleNamespace(arguments=arguments),
        ))
        observation = SimpleNamespace(to_llm_content=text(result), is_error=failed)
        self.state.events.append(SimpleNamespace(
            source="environment", tool_name=tool, tool_call_id=call, observation=observation
        ))

    def close(self):
        self.closed = True
'''
_CLAUDE = """
// What the runner uses of @anthropic-ai/claude-agent-sdk 0.3.
import { createRequire } from "node:module";
const session_id = "0a-1";
const AsyncFunction = (async () => {}).constructor;
const message = (type, block) => ({ type, message: { content: [block] }, session_id });
const say = (text) => message("assistant", { type: "text", text });
const call = (id, name, input) => message("assistant", { type: "tool_use", id, name, input });
const result = (id, content, is_error) => message("user", { type: "tool_result", tool_use_id: id, content, is_error });
const end = (text, more = {}) => ({
  type: "result", subtype: "success", is_error: false, result: text, session_id, num_turns: 2, total_cost_usd: 0.5,
  usage: { input_tokens: 5, cache_read_input_tokens: 20, output_tokens: 3 }, modelUsage: { "claude-x": {} }, ...more,
});
export async function* query({ prompt, options }) {
  const run = new AsyncFunction("options", "say", "call", "result", "end", "require", prompt);
  yield* (await run(options, say, call, result, end, createRequire(import.meta.url))) ?? [];
}
"""
_NPM = """
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
with open(here / "npm.log", "a") as log:
    log.write(json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}) + "\\n")
sdk = pathlib.Path("node_modules/@anthropic-ai/claude-agent-sdk")
sdk.mkdir(parents=True)
(sdk / "sdk.mjs").write_text((here / "sdk.mjs").read_text())
exec((here / "npm_hook.py").read_text())
version = json.loads(pathlib.Path("package.json").read_text())["dependencies"]["@anthropic-ai/claude-agent-sdk"]
(sdk / "package.json").write_text(json.dumps({"name": "x", "version": version, "type": "module", "exports": "./sdk.mjs"}))
"""


class StandIns:
    """Stand-ins in ``folder``, with a workspace in it. ``node_version`` is what the stand-in of Node says."""

    def __init__(self, folder: Path, *, node_version: str = "v22.1.0") -> None:
        self.folder = folder
        self.root = folder / "projects"
        self.workspace = self.root / "app"
        self.workspace.mkdir(parents=True)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.python = self._write_python()
        self._write_node(node_version)
        self._write_npm()

    def environment(self, **others: str) -> dict[str, str]:
        """Return the variables of a gateway that finds the stand-ins and the system's programs, and no real Node or SDK."""
        return {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "SPASS_OPENHANDS_PYTHON": str(self.python),
            "LLM_API_KEY": LLM_KEY,
            "ANTHROPIC_API_KEY": ANTHROPIC_KEY,
            "OPENAI_API_KEY": "sk-of-the-gateway-0123456789",
            "SPASS_TOKEN": "token-of-the-gateway",
            **others,
        }

    def foreign_agents(self, environment: Mapping[str, str] | None = None) -> ForeignAgents:
        """Return the foreign agents of a machine that has the stand-ins."""
        return ForeignAgents([self.root], environment=environment or self.environment(), folder=self.spass)

    @property
    def spass(self) -> Path:
        return self.folder / "spass"

    @property
    def installations(self) -> list[str]:
        """Return a line for each time that npm was started."""
        log = self.bin / "npm.log"
        return log.read_text().splitlines() if log.exists() else []

    def let_npm(self, code: str) -> None:
        """Let npm run ``code`` when it is half done."""
        (self.bin / "npm_hook.py").write_text(dedent(code))

    def spec(self, runner: ForeignRunner, code: str, **fields: object) -> ForeignRun:
        """Return a run whose SDK does what ``code`` says."""
        values: dict[str, Any] = {"system_prompt": "", "workspace": str(self.workspace), "timeout": 30, **fields}
        return ForeignRun(runner=runner, prompt=dedent(code), **values)

    def _write_python(self) -> Path:
        packages = self.folder / "packages"
        tools = packages / "openhands" / "tools"
        for name, tool in (("terminal", "TerminalTool"), ("file_editor", "FileEditorTool")):
            (tools / name).mkdir(parents=True)
            (tools / name / "__init__.py").write_text(f"class {tool}:\n    name = {name!r}\n")
        (tools / "__init__.py").write_text("")
        (packages / "openhands" / "sdk").mkdir()
        (packages / "openhands" / "sdk" / "__init__.py").write_text(_OPENHANDS)
        (packages / "sitecustomize.py").write_text(_SITE)
        return write_script(self.bin / "openhands-python", f'PYTHONPATH={packages} exec {sys.executable} "$@"')

    def _write_node(self, version: str) -> None:
        node = shutil.which("node")
        assert node is not None, "the tests of the runners need Node"
        write_script(self.bin / "node", f'if [ "$1" = --version ]; then echo {version}; else exec {node} "$@"; fi')

    def _write_npm(self) -> None:
        (self.bin / "npm.py").write_text(_NPM)
        (self.bin / "sdk.mjs").write_text(_CLAUDE)
        self.let_npm("")
        write_script(self.bin / "npm", f'exec {sys.executable} -S {self.bin / "npm.py"} "$@"')


def write_script(path: Path, line: str) -> Path:
    """Write a shell script of one line."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def path_without(*names: str) -> str:
    """Return the PATH without the folders that have one of the programs ``names``."""
    folders = os.environ["PATH"].split(":")
    return ":".join(folder for folder in folders if not any((Path(folder) / name).exists() for name in names))
