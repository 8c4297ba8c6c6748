"""Every statement that the seed makes about agents, through a public surface: routes, registry, client, command line and bus.

Each section has the name of the seed's section. Where the page about kinds and the seed differ, the page decides: the engine, the
model, the tools and the bus belong to the driver, and everything else is a field of the kind.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from spass import Spass
from spass.agents.kinds import KINDS, AgentContext, AgentResult, BaseAgent, ToolUsingAgent, user
from spass.agents.kinds.native_react import NativeReActAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.kinds.simple import SimpleAgent
from spass.agents.react import ReActAgent
from spass.core.bus import EVENT_TYPES
from spass.core.effects import HIDDEN, Answer, AssistantReply, Infer, Steps
from spass.core.messages import FinishReason, Json, Role, TokenUsage, ToolCallDelta
from spass.models.types import ChatDelta
from spass.testing.event_log import EventLog
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from spass.testing.model import Answer as ModelAnswer
from spass.testing.model import in_turn
from tests.functions.gateway import Gateway
from tests.unit.agents.driver_harness import ScriptedReply, ScriptedWorld
from tests.unit.cli.command import spass

USAGE = TokenUsage(10, 5)
KEYS = ("simple", "orchestrator", "native_react", "react", "native_openhands", "rlm")
OPERATORS = ("operative", "monitor_operative")  # test_operators_of_the_seed has their sections
WITH_TOOLS = ("orchestrator", "native_react", "react")
ACTION = 'Thought: I calculate.\nAction: calculator\nAction Input: {"expression": "2+2"}'


def ask(gateway: Gateway, text: str = "What is 2+2?", **body: Any) -> dict[str, Any]:
    reply = gateway.send("POST", "/v1/ask", body={"input": text, **body})
    assert reply.status == 200, reply.text
    answer: dict[str, Any] = reply.json
    return answer


def calls(*expressions: str, said: str = "") -> list[ChatDelta | BaseException]:
    """Return a reply that calls the calculator with each expression."""
    deltas = [ToolCallDelta(at, f"c{at}", "calculator", json.dumps({"expression": text})) for at, text in enumerate(expressions)]
    return [ChatDelta(said), ChatDelta(tool_calls=tuple(deltas), finish_reason=FinishReason.TOOL_CALLS, usage=USAGE)]


def tool_turn(kind: str) -> Sequence[ModelAnswer]:
    """Return the replies of a model that calls a tool once, in the form that ``kind`` reads."""
    if kind in ("orchestrator", *OPERATORS):
        return [calls("2+2"), "It is 4."]
    return [ACTION, "Final Answer: It is 4."] if kind in WITH_TOOLS else ["It is 4."]


@pytest.fixture(autouse=True)
def _restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what a test registers."""
    monkeypatch.setattr(KINDS, "_registered", {})


@pytest.fixture
def shout() -> type[BaseAgent]:
    @KINDS.register("shout")
    @dataclass(frozen=True, kw_only=True)
    class ShoutAgent(BaseAgent):
        """Answer in capital letters."""

        def steps(self, input: str, context: AgentContext) -> Steps:
            reply = yield Infer(messages=(*context.conversation, user(input)), show=HIDDEN)
            return Answer(reply.content.upper())

    return ShoutAgent


# --- BaseAgent ---


def test_base_agent_is_abstract_and_steps_is_what_a_kind_must_define() -> None:
    for abstract in (BaseAgent, ToolUsingAgent):
        with pytest.raises(TypeError, match="steps"):
            abstract()  # type: ignore[abstract]


def test_a_base_agent_has_defaults_and_ignores_tools(gateway: Gateway, shout: type[BaseAgent]) -> None:
    ask(gateway, agent="shout", tools=["calculator"])
    (request,) = gateway.model.requests
    assert (request.temperature, request.max_tokens, request.tools) == (0.7, 1024, ())
    assert (shout.accepts_tools, shout.multi_turn) == (False, True)


def test_run_returns_the_result_of_one_input() -> None:
    world = ScriptedWorld([ScriptedReply("Hello.")])
    result = anyio.run(lambda: SimpleAgent().run("Hi", AgentContext(), world.driver()))
    assert result == AgentResult("Hello.", turns=1)


@pytest.mark.parametrize("kind", [*KEYS, *OPERATORS])
def test_the_messages_are_system_prompt_conversation_and_input(gateway: Gateway, kind: str) -> None:
    conversation = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    ask(gateway, agent=kind, system_prompt="Be brief.", context={"conversation": conversation})
    system, hello, hi, question = gateway.model.requests[0].messages
    assert (system.role, system.content.startswith("Be brief.")) == (Role.SYSTEM, True)
    assert [hello.content, hi.content.removeprefix("Final Answer: "), question.content] == ["Hello", "Hi", "What is 2+2?"]


@pytest.mark.parametrize("kind", [*KEYS, *OPERATORS])
def test_think_tags_are_stripped_from_the_answer(gateway: Gateway, kind: str) -> None:
    gateway.model.script = "<think>2 and 2 make 4</think>It is 4."
    assert ask(gateway, agent=kind)["content"] == "It is 4."


def test_a_tool_using_agent_accepts_tools_and_has_a_limit_of_turns(gateway: Gateway) -> None:
    @KINDS.register("loop")
    class LoopAgent(ToolUsingAgent):
        """Use the tool loop of the base class."""

        def steps(self, input: str, context: AgentContext) -> Steps:
            return (yield from self.tool_loop(self.opening(input, context)))

    gateway.model.script = lambda *_: calls("2+2", said="One moment.")
    answer = ask(gateway, agent="loop", tools=["calculator"])
    assert (answer["turns"], answer["finish_reason"]) == (10, "max_turns")
    assert [tool.name for tool in gateway.model.requests[0].tools] == ["calculator"]


# --- AgentContext ---


@dataclass(frozen=True, kw_only=True)
class Mirror(ToolUsingAgent):
    """Answer with the context."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        reply = yield Infer(self.opening(input, context))
        seen: dict[str, Json] = {
            "conversation": [message.content for message in context.conversation],
            "tools": [*context.tools],
            "memory_results": [*context.memory_results],
            "metadata": dict(context.metadata),
            "described": [(spec.name, spec.category) for spec in context.specs],
        }
        return Answer(reply.content, metadata={"seen": seen})


def test_the_context_has_conversation_tools_memory_results_and_metadata(gateway: Gateway) -> None:
    KINDS.register("mirror")(Mirror)
    context = {
        "conversation": [{"role": "user", "content": "Hello"}],
        "memory_results": ["a passage", {"id": "d1"}],
        "metadata": {"trace": 7},
    }
    metadata = ask(gateway, agent="mirror", tools=["calculator", "current_datetime"], context=context)["metadata"]
    categories = {tool["function"]["name"]: tool["category"] for tool in gateway.send("GET", "/v1/tools").json["tools"]}
    names = ["calculator", "current_datetime"]
    assert metadata["seen"] == {
        **context,
        "conversation": ["Hello"],
        "tools": names,
        "described": [[n, categories[n]] for n in names],
    }
    assert metadata["trace"] == 7


def test_passages_of_an_index_are_memory_results_of_the_context(gateway: Gateway, tmp_path: Path) -> None:
    KINDS.register("mirror")(Mirror)
    gateway.put_documents(d1="The gate was built in 1791.")
    (tmp_path / "agents" / "mirrored.yaml").write_text("name: mirrored\nkind: mirror\nmodel: small\nrag_index: notes\n")
    (passages,) = ask(gateway, "When was it built?", agent="mirrored")["metadata"]["seen"]["memory_results"]
    assert "The gate was built in 1791." in passages


# --- AgentResult ---


@pytest.mark.parametrize("kind", WITH_TOOLS)
def test_the_result_has_content_tool_results_turns_and_metadata(gateway: Gateway, kind: str) -> None:
    gateway.model.script = in_turn(tool_turn(kind))
    answer = ask(gateway, agent=kind, tools=["calculator"])
    (tool,) = answer["tool_results"]
    assert (answer["content"], answer["turns"], answer["metadata"]) == ("It is 4.", 2, {})
    assert (tool["tool_name"], tool["success"], json.loads(tool["content"])["result"]) == ("calculator", True, 4)


def test_the_result_in_python_has_the_same_fields() -> None:
    world = ScriptedWorld([ScriptedReply("", ("clock",)), ScriptedReply("Noon.")])
    context = AgentContext(tools=("clock",), metadata={"trace": 7})
    result = anyio.run(lambda: OrchestratorAgent().run("What time is it?", context, world.driver()))
    assert (result.content, result.turns, result.metadata) == ("Noon.", 2, {"trace": 7})
    assert [(tool.tool_name, tool.success) for tool in result.tool_results] == [("clock", True)]


# --- SimpleAgent ---


def test_simple_builds_its_messages_from_the_conversation_and_the_query() -> None:
    steps = SimpleAgent().steps("hello", AgentContext((user("before"),)))
    assert next(steps) == Infer((user("before"), user("hello")), tools="none")


# --- OrchestratorAgent ---


def test_orchestrator_sends_the_definitions_of_its_tools(gateway: Gateway) -> None:
    ask(gateway, agent="orchestrator", tools=["calculator"])
    (spec,) = gateway.model.requests[0].tools
    listed = {tool["function"]["name"]: tool["function"] for tool in gateway.send("GET", "/v1/tools").json["tools"]}
    assert {"name": spec.name, "description": spec.description, "parameters": spec.parameters} == listed["calculator"]


def test_orchestrator_runs_each_call_and_appends_the_results_as_tool_messages(gateway: Gateway) -> None:
    gateway.model.script = in_turn([calls("2+2", "3*3", said="I calculate."), "4 and 9."])
    answer = ask(gateway, agent="orchestrator", tools=["calculator"])
    question, asked, *results = gateway.model.requests[1].messages[-4:]
    assert (question.role, asked.role, asked.content) == (Role.USER, Role.ASSISTANT, "I calculate.")
    assert [(message.role, message.tool_call_id) for message in results] == [(Role.TOOL, call.id) for call in asked.tool_calls]
    assert [json.loads(tool["content"])["result"] for tool in answer["tool_results"]] == [4, 9]
    assert (answer["content"], answer["turns"]) == ("4 and 9.", 2)


def test_orchestrator_treats_a_reply_without_tool_calls_as_the_answer(gateway: Gateway) -> None:
    with_tools = ask(gateway, agent="orchestrator", tools=["calculator"])
    without = ask(gateway, agent="simple")
    assert (with_tools["content"], with_tools["turns"]) == (without["content"], without["turns"]) == ("Hello there.", 1)


# --- NativeReActAgent ---


@pytest.mark.parametrize("kind", ["native_react", "react", "native_openhands"])
def test_a_kind_that_calls_tools_in_text_describes_them(gateway: Gateway, kind: str) -> None:
    names = ["calculator", "wikipedia_search", "web_search"]
    ask(gateway, agent=kind, tools=names)
    prompt = gateway.model.requests[0].messages[0].content
    for tool in gateway.send("GET", "/v1/tools").json["tools"]:
        if tool["function"]["name"] in names:
            assert f"{tool['function']['name']} (category: {tool['category']}): " in prompt
            assert all(f"- {name} (" in prompt for name in tool["function"]["parameters"]["properties"])
    own = ("```python",) if kind == "native_openhands" else ("Thought:", "Final Answer:")
    assert all(marker in prompt for marker in ("Action:", "Action Input:", *own))


@pytest.mark.parametrize("spell", [str, str.upper, str.lower, str.title])
def test_react_parses_its_markers_in_any_case(gateway: Gateway, spell: Any) -> None:
    action = f'{spell("Thought:")} sum\n{spell("Action:")} calculator\n{spell("Action Input:")} {{"expression": "2+2"}}'
    gateway.model.script = in_turn([action, f"{spell('Final Answer:')} It is 4."])
    answer = ask(gateway, agent="native_react", tools=["calculator"])
    assert (answer["content"], answer["turns"], len(answer["tool_results"])) == ("It is 4.", 2, 1)


def test_react_loops_until_ten_turns_are_made(gateway: Gateway) -> None:
    gateway.model.script = lambda *_: ACTION
    answer = ask(gateway, agent="react", tools=["calculator"])
    assert (len(gateway.model.requests), answer["turns"], answer["finish_reason"]) == (10, 10, "max_turns")
    assert answer["metadata"] == {"max_turns_exceeded": True}


def test_the_registry_contains_and_gets_kinds_and_the_old_import_works() -> None:
    assert KINDS.contains("orchestrator")
    assert not KINDS.contains("nothing")
    assert KINDS.get("orchestrator") is OrchestratorAgent
    assert KINDS.get("react") is KINDS.get("native_react") is NativeReActAgent is ReActAgent


# --- Using Agents ---


@pytest.fixture
def url(gateway: Gateway) -> Iterator[str]:
    """The address of the gateway on a socket, for a client of its own process."""

    def respond(request: HttpRequest) -> HttpAnswer:
        names = ("Authorization", "Content-Type", "SPASS-User-Id")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        reply = gateway.send(request.method, request.path, token=None, user=None, headers=headers, raw=request.body)
        return HttpAnswer(reply.text.encode(), reply.status, reply.headers["content-type"])

    with serve(respond) as address:
        yield address


EXAMPLES = [
    ("simple", [], "What is the capital of France?"),
    ("orchestrator", ["calculator", "think"], "What is sqrt(256)?"),
    ("native_react", ["calculator"], "What is 2+2?"),
    ("react", ["calculator", "think"], "Solve step by step: 15% of 340"),
    ("native_openhands", ["calculator", "web_search"], "Summarize what I wrote"),
    ("operative", ["calculator"], "Generate today's report"),
    ("monitor_operative", ["calculator"], "Investigate the root cause of the production outage"),
]


@pytest.mark.parametrize(("kind", "tools", "question"), EXAMPLES)
@pytest.mark.parametrize("form", ["--no-stream", "--json"])
def test_the_command_line_asks_each_kind(
    gateway: Gateway, url: str, kind: str, tools: list[str], question: str, form: Literal["--no-stream", "--json"]
) -> None:
    gateway.model.script = in_turn(tool_turn(kind))
    chosen = ["--tools", ",".join(tools)] if tools else []
    code, out, err = spass(url, "ask", form, "--agent", kind, *chosen, question)
    assert code == 0, err
    assert (json.loads(out)["content"] if form == "--json" else out.strip()) == "It is 4."
    assert gateway.model.requests[0].messages[-1].content == question


def test_the_sdk_answers_with_text_or_with_the_whole_result(gateway: Gateway, url: str) -> None:
    client = Spass(url=url, token="demo-token")
    gateway.model.script = in_turn(["Hello."])
    assert client.ask("Hello", agent="simple") == "Hello."
    for kind, tools in (("orchestrator", ["calculator"]), ("native_react", ["calculator", "think"])):
        gateway.model.script = in_turn(tool_turn(kind))
        assert client.ask("Calculate 15% of 340", agent=kind, tools=tools) == "It is 4."
    gateway.model.script = in_turn(tool_turn("orchestrator"))
    result = client.ask_full("What is the square root of 144?", agent="orchestrator", tools=["calculator", "think"])
    assert (result["content"], result["turns"]) == ("It is 4.", 2)
    assert [tool["tool_name"] for tool in result["tool_results"]] == ["calculator"]
    client.close()
    with pytest.raises(RuntimeError):
        client.ask("Hello", agent="simple")


# --- Agent Registration ---


def test_a_registered_kind_answers_through_ask_and_through_an_agents_file(
    gateway: Gateway, tmp_path: Path, shout: type[BaseAgent]
) -> None:
    (tmp_path / "agents" / "loud.yaml").write_text("name: loud\nkind: shout\nmodel: small\n")
    by_kind, by_file = ask(gateway, agent="shout"), ask(gateway, agent="loud")
    assert [(one["content"], one["agent"], one["kind"]) for one in (by_kind, by_file)] == [
        ("HELLO THERE.", "shout", "shout"),
        ("HELLO THERE.", "loud", "shout"),
    ]
    chat = gateway.send("POST", "/a1/agents/loud/chat", body={"message": "Hi"})
    assert chat.json["message"]["content"] == "HELLO THERE."
    assert gateway.send("GET", "/a1/agents/loud").json["kind"] == "shout"


def test_five_lines_drive_the_generator_of_a_kind_by_hand(shout: type[BaseAgent]) -> None:
    steps = shout().steps("hello", AgentContext())
    assert next(steps) == Infer(messages=(user("hello"),), show=HIDDEN)
    with pytest.raises(StopIteration) as end:
        steps.send(AssistantReply("hi"))
    assert end.value.value == Answer("HI")


# --- Event Bus Integration ---

TURN = ["agent_turn_start", "agent_turn_end"]
INFERENCE = ["inference_start", "inference_end"]


@pytest.mark.parametrize("kind", [*KEYS, *OPERATORS])
def test_a_run_publishes_the_start_and_the_end_of_turn_inference_and_tool(gateway: Gateway, kind: str) -> None:
    log = EventLog(gateway.services.bus)
    gateway.model.script = in_turn(tool_turn(kind))
    ask(gateway, agent=kind, tools=["calculator"])
    tool = ["tool_call_start", "tool_call_end", *INFERENCE] if kind in (*WITH_TOOLS, *OPERATORS) else []
    assert log.names == [TURN[0], *INFERENCE, *tool, TURN[1]]
    assert {event.kind for _, event in log.events} == {KINDS.canonical(kind)}
    log.check()


def test_the_kinds_themselves_publish_nothing() -> None:
    folder = Path(__file__).parents[2] / "shared" / "spass" / "agents" / "kinds"
    sources = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    assert len(sources) > len(set(KEYS))
    assert not [source for source in sources if "core.bus" in source or "publish(" in source]


def test_there_are_six_types_of_events() -> None:
    assert {event_type.name for event_type in EVENT_TYPES} == {*TURN, *INFERENCE, "tool_call_start", "tool_call_end"}
