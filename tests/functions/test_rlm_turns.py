"""Turns of agents of the kind ``rlm``: their streams, their audit, their sessions, their approvals, and how they are stopped."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from spass.agents.kinds import KINDS, AgentContext, BaseAgent
from spass.core.effects import Answer as AgentAnswer
from spass.core.effects import Cell, CellResult, RunCode, Steps
from spass.models.errors import BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.sandbox.launchers import NoSandbox
from spass.testing.event_log import EventLog
from spass.testing.model import Answer, calls
from tests.functions.gateway import Gateway, Reply
from tests.functions.rlm_turns import PROCESSES, SANDBOXES, Researcher, block
from tests.functions.test_call_trees import flatten, get_calls, shape
from tests.simulated.interpreter import InProcessSandbox
from tests.stream_grammar import answer_text, check_collected, of_type, read_events
from tests.unit.sandbox.process_list import descendants

AGENT = """
name: digger
kind: rlm
model: small
workspace: default
tools: [calculator, rag_query, rag_doc_delete, delegate]
approval: [rag_doc_delete]
delegates: [counting]
"""
BOSS = "name: boss\nmodel: small\nworkspace: default\ntools: [delegate]\ndelegates: [digger]\nsystem_prompt: boss\n"
CHAT = "/c1/agents/digger/chat"
SUM = "print(calculator(expression='6*7')['result'])"
ROUTES = ("chat", "messages", "ask")


@pytest.fixture(params=SANDBOXES, ids=["without confinement", "in processes"][: len(SANDBOXES)])
def researcher(gateway: Gateway, request: pytest.FixtureRequest) -> Researcher:
    gateway.services.sandbox = request.param()
    agents = gateway.services.settings.agents
    (agents / "digger.yaml").write_text(AGENT)
    (agents / "boss.yaml").write_text(BOSS)
    documents = [{"id": "a", "text": "alpha"}, {"id": "b", "text": "beta"}]
    assert gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": documents}).status == 200
    return Researcher(gateway)


def chat(researcher: Researcher, *replies: Answer, message_id: str = "m1", **more: Any) -> Reply:
    researcher.replies = [*replies] or researcher.replies
    body = {"message_id": message_id, "messages": [{"role": "user", "content": "Please."}], **more}
    return researcher.gateway.send("POST", CHAT, body=body)


def history(researcher: Researcher, session: str) -> list[dict[str, Any]]:
    path = f"/a1/agents/digger/sessions/{session}/messages"
    messages: list[dict[str, Any]] = researcher.gateway.send("GET", path).json["messages"]
    return messages


def send(researcher: Researcher, route: str, *replies: Answer, stream: bool) -> Reply:
    """Run the same turn on a route."""
    researcher.replies = [*replies]
    gateway = researcher.gateway
    if route == "ask":
        return gateway.send("POST", "/v1/ask", body={"input": "?", "agent": "digger", "stream": stream})
    if route == "chat":
        return gateway.send("POST", "/a1/agents/digger/chat", body={"message": "?", "stream": stream})
    session = gateway.send("POST", "/a1/agents/digger/sessions").json["id"]
    return gateway.send("POST", f"/a1/agents/digger/sessions/{session}/messages", body={"message": "?", "stream": stream})


TURN = (
    f"I compute.\n{block(SUM, 'secret_name = 5')}",
    block("print(llm_batch(['a', 'b']))", "1/0"),
    block("FINAL(f'It is {secret_name}.')"),
)


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_equals_the_blocking_answer_and_no_token_has_code(researcher: Researcher, route: str) -> None:
    blocking = send(researcher, route, *TURN, stream=False)
    events = read_events(send(researcher, route, *TURN, stream=True))
    check_collected(events, blocking.json)
    assert answer_text(events) == "It is 5."
    shown = [(token["content"], token["step"]) for token in of_type(events, "token")]
    assert shown == [("I compute.", 1), ("It is 5.", 4)]


@pytest.mark.parametrize("route", ROUTES)
def test_calls_that_code_makes_are_streamed_within_its_cell(researcher: Researcher, route: str) -> None:
    events = read_events(send(researcher, route, *TURN, stream=True))
    calculation, first, second, third = of_type(events, "tool_call")
    assert (calculation["tool"], calculation["agent"], calculation["parent_id"]) == ("calculator", "digger", first["id"])
    assert (calculation["args"], calculation["result"]["result"]) == ({"expression": "6*7"}, 42)
    assert {(call["tool"], call["parent_id"]) for call in (first, second, third)} == {("code_interpreter", None)}
    assert (first["args"], first["ok"]) == ({"code": f"{SUM}\nsecret_name = 5"}, True)
    assert first["result"] == {"output": "42\n", "error": None, "truncated": 0}
    assert (second["ok"], second["result"]["output"]) == (False, "['re: a', 're: b']\n")
    progress = [event["progress"] for event in events if "progress" in event]
    assert progress == ["2 sub-calls"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print(chr(0xd800), chr(0), chr(0x2028))", "Done."),
        ("print(llm_query(chr(0xd800) + 'a'))", "Done."),
        ("raise ValueError(chr(0xd800))", "Done."),
        ("calculator(expression=float('nan'))", "Done."),
        ("print('\x00')", "Done."),
        ("FINAL(chr(0xd800) + chr(0x2028))", "?\u2028"),
    ],
)
def test_characters_that_are_no_text_break_no_answer(researcher: Researcher, code: str, answer: str, route: str) -> None:
    blocking = send(researcher, route, block(code), "Done.", stream=False)
    events = read_events(send(researcher, route, block(code), "Done.", stream=True))
    check_collected(events, blocking.json)
    assert answer_text(events) == answer


def test_a_session_goes_on_after_an_answer_of_a_million_characters(researcher: Researcher) -> None:
    researcher.gateway.set_config(compact_summary_model="small")
    events = read_events(chat(researcher, block("FINAL('word ' * 200_000)")))
    assert len(answer_text(events)) == 1_000_000
    session = of_type(events, "done")[0]["session_id"]
    for number in range(2):
        events = read_events(chat(researcher, "Hello.", message_id=f"m{number + 2}", session_id=session))
        assert answer_text(events) == "Hello."


def test_everything_that_code_asks_for_is_below_its_cell_in_the_audit(researcher: Researcher) -> None:
    reply = send(researcher, "chat", *TURN, stream=False)
    calls = get_calls(researcher.gateway, reply.headers["spass-request-id"])
    assert shape(calls) == [
        ("chat", []),
        ("code_interpreter", [("calculator", [])]),
        ("chat", []),
        ("code_interpreter", [("chat", []), ("chat", [])]),
        ("chat", []),
        ("code_interpreter", []),
    ]
    assert {call["agent"] for call in flatten(calls)} == {"digger"}
    assert [call["status"] for call in calls if call["kind"] == "tool"] == ["ok", "tool_failed", "ok"]
    assert reply.headers["spass-cost-sub-calls"] == "5"
    assert reply.json["turns"] == 3
    models = [call for call in flatten(calls) if call["kind"] == "chat"]
    assert reply.json["usage"]["prompt_tokens"] == sum(call["prompt_tokens"] for call in models)


def test_the_bus_hears_the_calls_of_code_between_start_and_end_of_its_cell(researcher: Researcher) -> None:
    log = EventLog(researcher.gateway.services.bus)
    send(researcher, "chat", block(SUM, "llm_query('?')", "FINAL(1)"), stream=False)
    inference, tool = ["inference_start", "inference_end"], ["tool_call_start", "tool_call_end"]
    assert log.names == ["agent_turn_start", *inference, tool[0], *tool, *inference, tool[1], "agent_turn_end"]
    assert {event.kind for _, event in log.events} == {"rlm"}
    log.check()


def test_a_later_turn_reads_the_cells_as_text_and_has_none_of_their_variables(researcher: Researcher) -> None:
    first = read_events(chat(researcher, *TURN))
    session = of_type(first, "done")[0]["session_id"]
    assert [message["role"] for message in history(researcher, session)] == ["user", *["assistant", "tool"] * 3, "assistant"]
    second = read_events(chat(researcher, block("FINAL(secret_name)"), "Gone.", message_id="m2", session_id=session))
    (call,) = of_type(second, "tool_call")
    assert "NameError" in call["result"]["error"]
    assert answer_text(second) == "Gone."
    system, hello, said, output, *_ = researcher.questions[3].messages
    assert "variables of earlier turns are gone" in system.content
    assert (hello.content, said.content) == ("Please.", f"I compute.\n\n{block(SUM, 'secret_name = 5')}")
    assert "42" in output.content
    assert {message.role.value for message in researcher.questions[-1].messages} == {"system", "user", "assistant"}


def test_every_interpreter_belongs_to_one_turn_and_is_closed(gateway: Gateway) -> None:
    researcher = Researcher(gateway)
    sandbox = gateway.sandbox
    researcher.ask(block("1"), block("2"), "Done.")
    researcher.ask("No code.")
    researcher.ask(block("FINAL(1)"), token="demo-token")
    researcher.ask(block("FINAL(1)"), token="other-token", model="small")
    assert [len(interpreter.cells) for interpreter in sandbox.opened] == [2, 1, 1]
    assert sandbox.running == 0
    assert len({*sandbox.owners}) == 3, "two tokens without a user, and another tenant"


def test_code_belongs_to_a_user_of_a_tenant_whatever_the_token(gateway: Gateway) -> None:
    gateway.model.script = block("FINAL(1)")
    (gateway.services.settings.agents / "digger.yaml").write_text("name: digger\nkind: rlm\nmodel: small\n")
    for user, token in (("ada", "demo-token"), ("bob", "demo-token"), ("ada", "demo-admin-token"), ("ada", "other-token")):
        assert gateway.send("POST", "/a1/agents/digger/chat", user=user, token=token, body={"message": "?"}).status == 200
    ada, bob, same, other = gateway.sandbox.owners
    assert ada == same
    assert len({ada, bob, other}) == 3, "two users of a tenant, and a user of the same name of another tenant"
    assert "ada" not in "".join(gateway.sandbox.owners)


def test_a_conversation_that_is_too_long_is_shortened_and_no_code_runs_twice(researcher: Researcher) -> None:
    session = researcher.gateway.send("POST", "/a1/agents/digger/sessions", body={"compact_keep_last_n": 2}).json["id"]
    for number in range(3):
        assert chat(researcher, "So.", message_id=f"m{number}", session_id=session).status == 200
    researcher.gateway.set_config(compact_summary_model="dear")
    overflow = BackendContextLength("Too long.", status=400)
    replies = (block("kept = llm_query('once')", "print(kept)"), overflow, block("FINAL(kept + '!')"))

    def script(request: ChatRequest, _: CallContext) -> Answer:
        return "What was said before." if request.model == "dear" else researcher.answer(request, _)

    researcher.gateway.model.script = script
    researcher.questions.clear()
    events = read_events(chat(researcher, *replies, message_id="m9", session_id=session))
    assert answer_text(events) == "re: once!"
    assert [request.messages[0].content for request in researcher.queries] == ["once"]
    (done,) = of_type(events, "done")
    assert done["compaction"]["source_session_id"] == session
    assert [call["result"]["output"] for call in of_type(events, "tool_call")] == ["re: once\n", ""]
    _, too_long, after = researcher.questions
    assert len(after.messages) < len(too_long.messages)
    assert "Output: re: once" in researcher.read()


def test_a_write_of_code_waits_for_a_person_and_the_model_learns_the_decision(researcher: Researcher) -> None:
    delete = "waits = rag_doc_delete(index_id='notes', doc_id='a')"
    events = read_events(chat(researcher, block(delete, "FINAL(waits['approval_required'])")))
    nested, cell = of_type(events, "tool_call")
    (approval,) = of_type(events, "approval")
    assert answer_text(events) == "true"
    assert nested["parent_id"] == cell["id"]
    assert nested["result"]["approval_id"] == approval["approval"]["id"]
    assert cell["result"]["approvals"] == [nested["result"]]
    session = of_type(events, "done")[0]["session_id"]
    decision = {"decision": "deny", "reason": "Not now."}
    decided = researcher.gateway.send("POST", f"/a1/approvals/{approval['approval']['id']}", body=decision)
    assert decided.json["status"] == "denied"
    chat(researcher, "I see.", message_id="m2", session_id=session)
    assert "Not now." in researcher.read()
    assert '"approval_required"' not in researcher.read()


def test_code_may_call_a_delegate_and_be_one(researcher: Researcher) -> None:
    def script(request: ChatRequest, context: CallContext) -> Answer:
        first = request.messages[0].content
        if first.startswith("boss"):
            asked = calls(("delegate", {"agent": "digger", "task": "Dig."}))
            return asked if request.messages[-1].tool_call_id is None else "Done."
        if not first.startswith("You answer a question about data"):
            return "I counted."
        return block("result = delegate(agent='counting', task='Count.')", "FINAL(result['answer'])")

    researcher.gateway.model.script = script
    body = {"message_id": "m1", "messages": [{"role": "user", "content": "Please."}]}
    events = read_events(researcher.gateway.send("POST", "/c1/agents/boss/chat", body=body))
    made = of_type(events, "tool_call")
    counting, cell, digger = made
    assert [(call["tool"], call["agent"]) for call in made] == [
        ("delegate", "digger"),
        ("code_interpreter", "digger"),
        ("delegate", None),
    ]
    assert (counting["parent_id"], cell["parent_id"]) == (cell["id"], digger["id"])
    assert digger["result"]["answer"] == "I counted."


@pytest.mark.parametrize("stream", [False, True])
def test_the_agent_is_a_model_of_chat_completions_that_shows_no_code(researcher: Researcher, *, stream: bool) -> None:
    researcher.replies = [*TURN]
    body = {"model": "agent/digger", "messages": [{"role": "user", "content": "Please."}], "stream": stream}
    reply = researcher.gateway.send("POST", "/v1/chat/completions", body=body)
    assert reply.status == 200
    assert "It is 5." in reply.text
    assert "secret_name" not in reply.text


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_without_tools_is_a_model_that_shows_only_its_answer(researcher: Researcher, *, stream: bool) -> None:
    (researcher.gateway.services.settings.agents / "bare.yaml").write_text("name: bare\nkind: rlm\nmodel: small\n")
    researcher.replies = [f"I look.\n{block('found = 5')}", block("FINAL(f'It is {found}.')")]
    body = {"model": "agent/bare", "messages": [{"role": "user", "content": "Please."}], "stream": stream}
    reply = researcher.gateway.send("POST", "/v1/chat/completions", body=body)
    assert "It is 5." in reply.text
    assert "I look." not in reply.text


@dataclass(frozen=True, kw_only=True)
class Multiplier(BaseAgent):
    """Multiply with code."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        result: CellResult = yield RunCode(Cell(f"print({input})"), "")
        return AgentAnswer(result.output.strip())


def test_a_registered_kind_runs_code_without_saying_that_it_needs_it(
    researcher: Researcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KINDS, "_registered", {"multiplier": Multiplier})
    answer = researcher.gateway.send("POST", "/v1/ask", body={"input": "6*7", "agent": "multiplier"})
    assert answer.json["content"] == "42"
    researcher.gateway.services.sandbox = NoSandbox("SPASS_SANDBOX is none.")
    again = researcher.gateway.send("POST", "/v1/ask", body={"input": "6*7", "agent": "multiplier"})
    assert (again.status, again.code) == (503, "sandbox_unavailable")


HANGING = ("llm_query('hang')", "llm_batch(['hang'] * 20)", *(("while True: pass",) if PROCESSES.unavailable is None else ()))


@pytest.mark.parametrize("code", HANGING)
def test_a_stopped_turn_leaves_no_child_and_a_valid_record(researcher: Researcher, code: str) -> None:
    gateway = researcher.gateway
    if isinstance(gateway.services.sandbox, InProcessSandbox) and "while" in code:
        code = "llm_query('hang')"  # a thread cannot be stopped
    closed: list[str] = []

    async def hang() -> AsyncGenerator[ChatDelta, None]:
        try:
            yield ChatDelta("I be")
            await asyncio.Event().wait()
        finally:
            closed.append("query")

    def script(request: ChatRequest, context: CallContext) -> Answer | AsyncGenerator[ChatDelta, None]:
        return hang() if request.messages[0].content == "hang" else researcher.answer(request, context)

    async def stop() -> None:
        while not ("while" in code and descendants()) and len(gateway.model.requests) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert (await gateway.send_async("DELETE", f"{CHAT}/m1")).status == 202

    before = descendants()
    gateway.model.script = script
    researcher.replies = [f"I wait.\n{block(code)}"]
    body = {"message_id": "m1", "messages": [{"role": "user", "content": "Please."}]}
    reply = gateway.send_during(gateway.send_async("POST", CHAT, body=body), stop())
    assert descendants() <= before
    events = read_events(reply)
    (done,) = of_type(events, "done")
    assert done["finish_reason"] == "cancelled"
    (cell,) = of_type(events, "tool_call")
    assert (cell["tool"], cell["result"]["error"]["code"]) == ("code_interpreter", "cancelled")
    assert len(closed) == sum(request.messages[0].content == "hang" for request in gateway.model.requests)
    assert [message["role"] for message in history(researcher, done["session_id"])] == ["user", "assistant", "tool", "assistant"]
    statuses = {(record.get("tool"), record["status"]) for record in gateway.records() if record["kind"] == "tool"}
    assert statuses == {("code_interpreter", "cancelled")}
    again = read_events(chat(researcher, "Hello.", message_id="m2", session_id=done["session_id"]))
    assert answer_text(again) == "Hello."
