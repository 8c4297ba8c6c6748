"""``spass.llm.driver``: agent kinds over the models of gateway.yaml, without a gateway."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spass.agents.kinds import AgentContext, SimpleAgent
from spass.core.errors import SpassError
from spass.core.messages import ToolCall
from spass.llm import BackendError, complete, driver, errors, usage
from spass.testing.http_server import json_answer
from spass.testing.model_server import Body, Completion, serve_model
from tests.unit.calls.in_process_config import folder_with, run

CONFIG = """
llm: {{retries: 0, backends: [{{provider: openai, base_url: "{url}/v1", supported_models: [llama-4-scout]}}]}}
models:
  - {{name: llama-4-scout, context_window: 8000, tool_calls: text}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
"""
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


@pytest.fixture
def bodies(tmp_path: Path) -> Iterator[list[Body]]:
    received: list[Body] = []

    def script(body: Body) -> Any:
        received.append(body)
        if "fail" in str(body["messages"]):
            return json_answer({"error": {"message": "Overloaded."}}, 503)
        return Completion({"content": '[weather(city="Köln")]' if body.get("tools") else "In the centre."})

    with serve_model(script) as url, folder_with(tmp_path, CONFIG.format(url=url), {"OPENAI_API_KEY": "sk-a-key"}):
        yield received


def test_a_kind_runs_over_a_real_model_as_the_guide_shows(bodies: list[Body], capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "import driver" in block)
    names: dict[str, Any] = {}
    exec("async def work():\n" + re.sub("(?m)^", "    ", code), names)
    run(names["work"])
    assert capsys.readouterr().out == "In the centre. 1\n"
    assert (bodies[0]["temperature"], bodies[0]["max_tokens"], bodies[0]["stream"]) == (0.2, 1024, True)


def test_a_driver_counts_usage_and_a_failed_run_raises_the_backend_error(bodies: list[Body]) -> None:
    async def work() -> None:
        await SimpleAgent().run("Where?", AgentContext(), driver("llama-4-scout", agent_id="guide"))
        assert usage("guide").request_count == 1
        with pytest.raises(errors.BackendError):
            await SimpleAgent().run("fail", AgentContext(), driver("llama-4-scout"))
        with pytest.raises(BackendError):
            await complete("llama-4-scout", [{"role": "user", "content": "fail"}])

    run(work)
    assert BackendError is errors.BackendError is SpassError


def test_complete_offers_tools_and_returns_the_calls(bodies: list[Body]) -> None:
    async def work() -> None:
        reply = await complete("llama-4-scout", [{"role": "user", "content": "Rain?"}], tools=[TOOL])
        (call,) = reply.tool_calls
        assert (call, reply.finish_reason, reply.content) == (ToolCall(call.id, "weather", '{"city":"Köln"}'), "tool_calls", "")
        with pytest.raises(SpassError, match=r"tools\.1 is not a tool") as refused:
            await complete("llama-4-scout", [{"role": "user", "content": "Rain?"}], tools=[TOOL, {"name": "weather"}])
        assert refused.value.param == "tools.1"

    run(work)
    assert [len(body["tools"]) for body in bodies] == [1]
