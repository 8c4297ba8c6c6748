"""The four axes of ``monitor_operative``, over the routes: what the model reads, what remains in memory, what a client gets."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from spass.agents.kinds.axes.compression import SUMMARY_PROMPT
from spass.agents.kinds.axes.extraction import EDGES_PROMPT
from spass.agents.kinds.axes.retrieval import GRADES_PROMPT
from spass.agents.registry import load_agent
from spass.calls.datamark import remove_marks
from spass.core.messages import Role
from spass.models.errors import AttemptFailed
from spass.models.types import CallContext, ChatRequest, EmbeddingReply, EmbeddingRequest, pack_rows
from spass.tenancy.yaml_source import ConfigError
from spass.testing.model import USAGE, Answer, calls, in_turn
from tests.functions.gateway import Gateway, Reply
from tests.functions.operator_runs import ask, done_of
from tests.stream_grammar import collect_reply, comparable_reply, of_type, parse_events

MANUAL: Final = "The valve was stuck, so the pump stopped. " * 90
LOOK_UP: Final = ("rag_doc_get", {"index_id": "notes", "doc_id": "manual"})
CALCULATION: Final = ("calculator", {"expression": "factorial(40)"})
EDGE: Final = {"cause": "stuck valve", "effect": "stopped pump", "confidence": 0.8, "evidence": "the pump stopped"}
PROMPTS: Final = {
    SUMMARY_PROMPT: "observation_compression",
    EDGES_PROMPT: "memory_extraction",
    GRADES_PROMPT: "retrieval_strategy",
}
USER: Final = {"SPASS-User-Id": "ada"}
SILENT: Final = {
    "observation_compression": "none",
    "memory_extraction": "none",
    "retrieval_strategy": "none",
    "task_decomposition": "monolithic",
}


@pytest.fixture
def plant(gateway: Gateway) -> Gateway:
    """A gateway with a long document, and an agent of the kind with the defaults of all axes."""
    gateway.put_documents(manual=MANUAL)
    file = gateway.services.settings.agents / "monitor.yaml"
    file.write_text("name: monitor\nkind: monitor_operative\nmodel: small\ntools: [rag_doc_get, calculator]\n")
    return gateway


def purpose_of(request: ChatRequest) -> str | None:
    """Return the axis for which a call is made aside, or None for a step of the agent."""
    text = request.messages[0].content
    return next((purpose for prompt, purpose in PROMPTS.items() if text.startswith(prompt)), None)


def script(aside: Callable[[str, ChatRequest], Answer], *steps: Answer) -> Callable[[ChatRequest, CallContext], Answer]:
    """Return a script of a model that gives ``steps`` to the agent and ``aside`` to calls made aside."""
    step = in_turn(steps or [calls(LOOK_UP), "It was the valve."])

    def answer(request: ChatRequest, context: CallContext) -> Answer:
        purpose = purpose_of(request)
        found = step(request, context) if purpose is None else aside(purpose, request)
        assert not hasattr(found, "aclose")
        return found

    return answer


def good(purpose: str, _: ChatRequest) -> Answer:
    """Return a useful reply to a call made aside."""
    return {
        "observation_compression": "The valve was stuck.",
        "memory_extraction": json.dumps({"edges": [EDGE]}),
        "retrieval_strategy": '{"grades": {"1": 3}}',
    }[purpose]


def run(gateway: Gateway, text: str = "Why did the pump stop?", **axes: str) -> Reply:
    body = {"params": {**SILENT, "operator_id": "plant", **axes}, "tools": ["rag_doc_get", "calculator"]}
    reply = ask(gateway, text, kind="monitor_operative", body=body)
    assert reply.status == 200, reply.text
    return reply


def steps_of(gateway: Gateway) -> list[ChatRequest]:
    return [request for request in gateway.model.requests if purpose_of(request) is None]


def notes(gateway: Gateway, operator: str = "plant") -> list[Any]:
    found: list[Any] = gateway.send("GET", f"/v1/operators/{operator}/notes", headers=USER).json["notes"]
    return found


def tool_messages(gateway: Gateway, agent: str, session: str) -> list[str]:
    page = gateway.send("GET", f"/a1/agents/{agent}/sessions/{session}/messages")
    return [message["content"] for message in page.json["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize("value", ["summarize", "truncate", "none"])
def test_the_history_has_what_the_model_read_and_the_answer_the_whole_result(plant: Gateway, value: str) -> None:
    plant.model.script = script(good)
    answer = run(plant, observation_compression=value).json
    (whole,) = [tool["content"] for tool in answer["tool_results"]]
    assert json.loads(whole)["text"] == MANUAL
    read = remove_marks(steps_of(plant)[-1].messages[-1].content)
    assert tool_messages(plant, "monitor_operative", answer["metadata"]["session_id"]) == [read]
    shortened = f"{whole[:1400]}\n[… {len(whole) - 2000} characters were dropped here …]\n{whole[-600:]}"
    assert read == {"summarize": "The valve was stuck.", "truncate": shortened, "none": whole}[value]
    assert len(plant.model.requests) == 2 + (value == "summarize")

    run(plant, "And before?")
    shown = [remove_marks(message.content) for message in steps_of(plant)[-1].messages if message.role is Role.TOOL]
    assert shown[0] == read


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_equals_the_blocking_reply_and_leaves_the_same_history(plant: Gateway, fails: bool) -> None:
    def aside(purpose: str, request: ChatRequest) -> Answer:
        return AttemptFailed("down") if fails else good(purpose, request)

    replies, histories = [], []
    for user, way in (("ada", "blocking"), ("bob", "stream"), ("eve", "chat")):
        plant.model.script = script(aside)
        body: dict[str, Any] = {"message": "Why?", "stream": way == "stream"}
        path = "/a1/agents/monitor/chat"
        if way == "chat":
            body, path = {"message_id": "m", "messages": [{"role": "user", "content": "Why?"}]}, "/c1/agents/monitor/chat"
        reply = plant.send("POST", path, body=body, user=user)
        assert reply.status == 200, reply.text
        found = comparable_reply(reply.json) if way == "blocking" else collect_reply(parse_events(reply.content))
        session = reply.json["session_id"] if way == "blocking" else done_of(reply)["session_id"]
        page = plant.send("GET", f"/a1/agents/monitor/sessions/{session}/messages", user=user).json["messages"]
        histories.append([(message["role"], message["content"]) for message in page])
        replies.append(found)
        ((_, _, result),) = found["tool_calls"]
        assert result["text"] == MANUAL
    assert replies[1:] == replies[:1] * 2
    assert histories[1:] == histories[:1] * 2
    codes = [(call["purpose"], call["code"]) for call in replies[0]["metadata"].get("side_calls", ())]
    failed = [("observation_compression", "upstream_error"), ("memory_extraction", "upstream_error")]
    assert codes == (failed if fails else [])


def test_a_failed_call_made_aside_is_a_status_line_of_the_stream(plant: Gateway) -> None:
    plant.model.script = script(lambda *_: "")
    reply = plant.send("POST", "/a1/agents/monitor/chat", body={"message": "Why?", "stream": True})
    executing = [event for event in of_type(parse_events(reply.content), "status_update") if event["status"] == "executing"]
    told = [event["detail"] for event in executing if "tool_call" not in event]
    assert told == [
        f"A call for {purpose} failed (empty_reply). The run continues without it."
        for purpose in ("observation_compression", "memory_extraction")
    ]
    assert [call["code"] for call in done_of(reply)["metadata"]["side_calls"]] == ["empty_reply"] * 2


def test_calls_made_aside_are_paid_but_are_no_turns(plant: Gateway) -> None:
    plant.model.script = script(good)
    answer = run(plant, observation_compression="summarize", memory_extraction="causality_graph")
    assert (answer.json["turns"], len(plant.model.requests)) == (2, 4)
    chats, vector_of_the_note = 4 * 10, 1
    assert answer.json["usage"]["prompt_tokens"] == chats + vector_of_the_note
    assert int(answer.headers["spass-cost-sub-calls"]) >= len(plant.model.requests)


def test_edges_are_listed_merged_and_recalled_as_data(plant: Gateway) -> None:
    plant.model.script = script(good)
    for _ in range(2):
        run(plant, memory_extraction="causality_graph")
    (note,) = notes(plant)
    assert json.loads(note["content"]) == EDGE
    assert note["created_at"]

    plant.model.script = script(good, "It was the valve.")
    run(plant, "stuck valve?", retrieval_strategy="keyword")
    (found,) = [message for message in steps_of(plant)[-1].messages if "of earlier runs" in remove_marks(message.content)]
    assert found.role is Role.USER
    assert re.fullmatch(r'## Notes of earlier runs\n\n<data mark="(.)">[^ ]*</data>', found.content)
    assert json.dumps(EDGE["cause"]) in json.loads(remove_marks(found.content).splitlines()[-1])["content"]


@pytest.mark.parametrize(("value", "tool"), [("scratchpad", LOOK_UP), ("structured_json", CALCULATION), ("none", LOOK_UP)])
def test_other_extractions_call_no_model(plant: Gateway, value: str, tool: tuple[str, dict[str, str]]) -> None:
    plant.model.script = script(good, calls(tool), "Done.")
    (result,) = [tool["content"] for tool in run(plant, memory_extraction=value).json["tool_results"]]
    assert len(plant.model.requests) == 2
    kept = {"scratchpad": [f"rag_doc_get: {result[:1000]}"], "structured_json": [result], "none": []}
    assert [note["content"] for note in notes(plant)] == kept[value]


def by_topic(request: EmbeddingRequest) -> EmbeddingReply:
    """Embed texts about water alike, whatever their words are."""
    rows = [[1.0, 9.0 * any(word in text for word in ("flood", "water", "wet"))] + [0.1] * 6 for text in request.texts]
    return EmbeddingReply(pack_rows(rows), len(rows), 8, USAGE)


def remember(gateway: Gateway, *texts: str) -> None:
    """Let the operator store notes."""
    body = {"params": {**SILENT, "operator_id": "plant"}, "tools": ["memory_store"]}
    gateway.model.script = in_turn([calls(*(("memory_store", {"content": text}) for text in texts)), "Done."])
    assert ask(gateway, "Note this", kind="monitor_operative", body=body).status == 200


def recalled(gateway: Gateway) -> list[str]:
    texts = [remove_marks(message.content) for message in steps_of(gateway)[-1].messages]
    lines = [line for text in texts if text.startswith("## Notes") for line in text.splitlines()[2:]]
    return [json.loads(line)["content"] for line in lines]


def test_each_retrieval_finds_notes_of_its_own(plant: Gateway) -> None:
    plant.model.vectors = by_topic
    remember(plant, "The zyklop is at gate 7.", "It was wet everywhere.", "The roof is red.")

    def grade(_: str, request: ChatRequest) -> Answer:
        lines = [json.loads(line) for line in remove_marks(request.messages[-1].content).splitlines()]
        return json.dumps(
            {"grades": {str(line["note"]): 2 + ("wet" in line["content"]) - ("roof" in line["content"]) for line in lines}}
        )

    plant.model.script = script(grade, "Done.")
    before = len(plant.model.requests)
    run(plant, "zyklop?", retrieval_strategy="keyword")
    assert recalled(plant) == ["The zyklop is at gate 7."]
    run(plant, "A flood?", retrieval_strategy="semantic")
    assert recalled(plant)[0] == "It was wet everywhere."
    assert len(plant.model.requests) == before + 2
    run(plant, "zyklop in the flood?", retrieval_strategy="hybrid_with_self_eval")
    assert sorted(recalled(plant)) == ["It was wet everywhere.", "The zyklop is at gate 7."]
    assert len(plant.model.requests) == before + 4
    run(plant, "zyklop?", retrieval_strategy="none")
    assert recalled(plant) == []


def test_a_run_without_the_embedding_model_is_named_and_continues(plant: Gateway) -> None:
    remember(plant, "The zyklop is at gate 7.")

    def down(_: EmbeddingRequest) -> EmbeddingReply:
        raise AttemptFailed("down")

    plant.model.vectors = down
    plant.model.script = script(lambda *_: '{"grades": [3]}', "Done.")
    answer = run(plant, "zyklop?", retrieval_strategy="hybrid_with_self_eval").json
    assert recalled(plant) == ["The zyklop is at gate 7."]
    assert [(call["purpose"], call["code"]) for call in answer["metadata"]["side_calls"]] == [
        ("retrieval_strategy", "upstream_error")
    ]


BAD_VALUES: Final[Sequence[tuple[str, Any, str]]] = [
    ("observation_compression", "summarise", "'summarize', 'truncate' or 'none'"),
    ("memory_extraction", "", "'causality_graph', 'scratchpad', 'structured_json' or 'none'"),
    ("retrieval_strategy", "KEYWORD", "'hybrid_with_self_eval', 'keyword', 'semantic' or 'none'"),
    ("task_decomposition", None, "'phased', 'monolithic' or 'hierarchical'"),
    ("task_decomposition", ["phased"], "'phased', 'monolithic' or 'hierarchical'"),
]


@pytest.mark.parametrize(("axis", "value", "valid"), BAD_VALUES)
def test_an_unknown_value_is_refused_with_the_valid_ones(plant: Gateway, axis: str, value: Any, valid: str) -> None:
    body = {"input": "Hi", "agent": "monitor_operative", "params": {axis: value}}
    reply = plant.send("POST", "/v1/ask", body=body)
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", f"params.{axis}")
    assert valid in reply.json["error"]["message"]
    file = plant.services.settings.agents / "monitor.yaml"
    file.write_text(f"name: monitor\nkind: monitor_operative\nmodel: small\n{axis}: {json.dumps(value)}\n")
    with pytest.raises(ConfigError) as caught:
        load_agent(file, plant.services.config)
    assert f"monitor.yaml:4: {axis}" in str(caught.value)
    assert valid in str(caught.value)
    assert plant.model.requests == []


@pytest.mark.parametrize("axis", [*SILENT])
def test_an_axis_on_another_kind_names_the_kind_that_has_it(plant: Gateway, axis: str) -> None:
    reply = plant.send("POST", "/v1/ask", body={"input": "Hi", "agent": "operative", "params": {axis: "none"}})
    assert (reply.status, reply.json["error"]["param"]) == (400, f"params.{axis}")
    file = plant.services.settings.agents / "monitor.yaml"
    file.write_text(f"name: monitor\nkind: operative\nmodel: small\n{axis}: none\n")
    with pytest.raises(ConfigError, match="monitor_operative"):
        load_agent(file, plant.services.config)
