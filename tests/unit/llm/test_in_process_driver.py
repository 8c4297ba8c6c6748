"""``spass.models.driver``: agent kinds over the models of gateway.yaml, without a gateway. The examples of the guides run."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from spass.agents.kinds import AgentContext, OperativeAgent, OrchestratorAgent, RLMAgent, SimpleAgent
from spass.core.errors import InvalidRequest, SpassError, UpstreamTimeout
from spass.core.messages import ToolCall
from spass.llm import BackendError, complete, driver, errors, usage
from spass.memory.process_memory import ProcessMemory
from spass.sandbox.foreign import versions
from spass.testing.http_server import json_answer
from spass.testing.model_server import Body, Completion, serve_model
from spass.tools.registry import TOOLS
from tests.unit.llm.in_process_config import folder_with, run
from tests.unit.sandbox.foreign.stand_ins import StandIns

CONFIG = """
llm: {{retries: 0, backends: [{{provider: openai, base_url: "{url}/v1", supported_models: [llama-4-scout]}}]}}
models:
  - {{name: llama-4-scout, context_window: 8000, tool_calls: text}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
"""
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
GUIDES = Path(__file__).resolve().parents[3] / "docs"
MODEL = "llama-4-scout"


def run_example(guide: str, part: str, *changes: tuple[str, str]) -> None:
    """Run the Python block of ``guide`` that contains ``part``."""
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL) if part in block)
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec("async def work():\n" + re.sub("(?m)^", "    ", code), names)
    run(names["work"])


def call(name: str, **arguments: object) -> Completion:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return Completion({"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]})


@pytest.fixture
def serve_script(tmp_path: Path) -> Iterator[Callable[..., list[Body]]]:
    """Return a function that serves ``answers`` in their order, and returns the list of the bodies that they answer."""
    with ExitStack() as stack:

        def serve(*answers: Any, more: str = "") -> list[Body]:
            received: list[Body] = []
            left = iter(answers)

            def script(body: Body) -> Any:
                received.append(body)
                return next(left)

            url = stack.enter_context(serve_model(script))
            config = CONFIG.format(url=url).replace(", tool_calls: text", "") + more
            stack.enter_context(folder_with(tmp_path, config, {"OPENAI_API_KEY": "sk-a-key"}))
            return received

        yield serve


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


def text(answer: str) -> Completion:
    return Completion({"content": answer})


def roles(body: Body) -> list[str]:
    return [message["role"] for message in body["messages"]]


def test_kinds_run_with_tools_as_the_guide_shows(
    serve_script: Callable[..., list[Body]], capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = serve_script(
        text("In the centre."),
        call("calculator", expression="sqrt(144)"),
        text("It is 12."),
        text('Thought: I add.\nAction: calculator\nAction Input: {"expression": "2+2"}'),
        text("Final Answer: 4"),
    )
    run_example("cli.md", "NativeReActAgent")
    out = capsys.readouterr()
    assert out.out == "In the centre. 1\nIt is 12. 2 ['calculator']\n4\n"
    assert {json.loads(line)["tool"] for line in out.err.splitlines()} == {"calculator"}
    assert (bodies[0]["temperature"], bodies[0]["max_tokens"], bodies[0]["stream"]) == (0.2, 1024, True)
    assert [[tool["function"]["name"] for tool in body.get("tools", ())] for body in bodies[:3]] == [
        [],
        ["calculator", "think"],
        ["calculator", "think"],
    ]
    assert '"result":12' in bodies[2]["messages"][-1]["content"]
    assert '"result":4' in bodies[4]["messages"][-1]["content"]


def test_operators_remember_from_run_to_run_as_the_guide_shows(
    serve_script: Callable[..., list[Body]], capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = serve_script(
        call("memory_store", key="state", content="Reported until Monday."),
        text("The report."),
        call("memory_search", query="Monday"),
        text("The next report."),
        text("A valve."),
    )
    run_example("cli.md", "OperativeAgent")
    assert capsys.readouterr().out == "The report.\nThe next report.\nA valve.\n"
    assert "Reported until Monday." not in str(bodies[0]["messages"])
    first = ["user", "assistant", "tool", "assistant"]
    assert roles(bodies[2]) == ["system", *first, "user", "user"]
    assert "Reported until Monday." in bodies[2]["messages"][-2]["content"]
    assert bodies[2]["messages"][-1]["content"] == "Generate tomorrow's report"
    assert roles(bodies[4])[-1] == "user"


def test_a_run_that_fails_leaves_the_memory_as_it_was(serve_script: Callable[..., list[Body]]) -> None:
    down = json_answer({"error": {"message": "Overloaded."}}, 503)
    bodies = serve_script(call("memory_store", key="state", content="Lost."), down, text("Hello."))
    memory = ProcessMemory()

    async def work() -> None:
        with pytest.raises(BackendError):
            await OperativeAgent().run("Go", AgentContext(), driver(MODEL, tools=["memory_store"], memory=memory))
        await OperativeAgent().run("Go", AgentContext(), driver(MODEL, memory=memory))

    run(work)
    assert roles(bodies[2]) == ["user"]


def test_results_of_tools_are_sent_back_as_the_guide_shows(
    serve_script: Callable[..., list[Body]], capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = serve_script(call("weather", city="Köln"), text("Yes."))
    run_example("cli.md", "WEATHER")
    assert capsys.readouterr().out == "Yes.\n"
    _, asked, result = bodies[1]["messages"]
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"city": "Köln"}
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "c1", "It rains in Köln.")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "Hi", "tool_calls": []}, "messages.0"),
        ({"role": "assistant", "content": None}, "messages.0.content"),
        ({"role": "assistant", "content": "", "tool_calls": "c1"}, "messages.0.tool_calls"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "c1"}]}, "messages.0.tool_calls.0"),
        ({"role": "tool", "content": "Hi", "tool_call_id": ""}, "messages.0.tool_call_id"),
        ({"role": "tool", "content": {}, "tool_call_id": "c1"}, "messages.0.content"),
    ],
)
def test_a_message_of_a_tool_that_is_none_is_refused(serve_script: Callable[..., list[Body]], message: Any, param: str) -> None:
    bodies = serve_script()
    with pytest.raises(InvalidRequest) as refused:
        run(lambda: complete(MODEL, [message]))
    assert (refused.value.param, bodies) == (param, [])


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_that_needs_what_a_gateway_stores_is_refused_by_name(serve_script: Callable[..., list[Body]], name: str) -> None:
    serve_script()
    source = Path(str(import_module(f"spass.tools.builtin.{TOOLS[name].module or name}").__file__)).read_text()
    stored = r"Rag\b|Delegates|LineageSearcher|scope\.store|spass\.(rag|workspaces)|orkspace|TwoStep"
    if re.search(stored, source):
        with pytest.raises(InvalidRequest, match=f"'{name}' needs what a gateway stores.*Spass"):
            driver(MODEL, tools=[name], memory=ProcessMemory())
    else:
        driver(MODEL, tools=[name], memory=ProcessMemory())
        if "memory: Memory" in source:
            with pytest.raises(InvalidRequest, match=f"'{name}' needs a memory"):
                driver(MODEL, tools=[name])


def test_an_unknown_tool_is_refused_with_the_names_of_those_that_run(serve_script: Callable[..., list[Body]]) -> None:
    serve_script()
    with pytest.raises(SpassError, match=r"no tool 'clock'\. Use one of: calculator, current_datetime, think, llm"):
        driver(MODEL, tools=["clock"])


def test_tools_may_call_models_and_run_code(serve_script: Callable[..., list[Body]]) -> None:
    bodies = serve_script(call("llm", prompt="Say it."), text("Said."), call("code_interpreter", code="print(6*7)"), text("42"))

    async def work() -> tuple[str, ...]:
        engine = driver(MODEL, tools=["llm", "code_interpreter"], agent_id="guide")
        result = await OrchestratorAgent().run("Go", AgentContext(), engine)
        assert usage("guide").request_count == 4
        return tuple(call.content for call in result.tool_results)

    said, computed = run(work)
    assert json.loads(said)["text"] == "Said."
    assert json.loads(computed)["output"] == "42\n"
    assert bodies[1]["messages"] == [{"role": "user", "content": "Say it."}]


def test_a_run_of_code_needs_no_table(serve_script: Callable[..., list[Body]]) -> None:
    serve_script(text("~~~python\nFINAL(str(6 * 7))\n~~~"))
    assert run(lambda: RLMAgent().run("6 times 7?", AgentContext(), driver(MODEL))).content == "42"


def test_every_call_of_a_run_ends_at_the_deadline_of_the_run(serve_script: Callable[..., list[Body]]) -> None:
    serve_script(Completion({"content": "a b"}, pause=30.0))
    with pytest.raises(UpstreamTimeout):
        run(lambda: SimpleAgent().run("Go", AgentContext(), driver(MODEL, seconds=0.5)))


def test_claude_code_runs_as_the_guide_shows(
    serve_script: Callable[..., list[Body]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "machine").mkdir()
    machine = StandIns(tmp_path / "machine")
    sdk = machine.bin / "sdk.mjs"
    sdk.write_text(re.sub(r"const run = .*\n.*\n", "yield end(`Done: ${prompt} ${options.tools}`);\n", sdk.read_text()))
    bodies = serve_script(more=f"harnesses: {{roots: [{machine.root}]}}\n")
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(versions, "_answers", {})
    run_example("code.md", "ClaudeCodeAgent", ("/home/me/projects/app", str(machine.workspace)))
    assert capsys.readouterr().out == "Done: Add type hints to all functions in utils.py Read,Write,Bash\n"
    assert bodies == []


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
