"""A model that writes its tool calls as JSON text, in agents, in chats with server tools and in chats with the client's tools."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from spass.calls.datamark import remove_marks
from spass.core.messages import FinishReason, TokenUsage
from spass.models.types import CallContext, ChatDelta, ChatRequest
from tests.functions.gateway import CONFIG, Gateway, Reply
from tests.stream_grammar import answer_text, of_type, read_events

CHAT = "/v1/chat/completions"
SUM = '```json\n{"name": "calculator", "parameters": {"expression": "6*7"}}\n```'
WEATHER = '{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "6 * 7?"}]}

Plan = Callable[..., list[ChatRequest]]


def letters(text: str) -> Sequence[ChatDelta]:
    """Return a reply that arrives letter by letter."""
    return [*map(ChatDelta, text), ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))]


@pytest.fixture
def plan(gateway: Gateway) -> Plan:
    """Return a function that scripts the replies of a model that is marked ``tool_calls: text``, and returns its requests."""

    def script(*replies: str, defaults: str = "") -> list[ChatRequest]:
        config = CONFIG.replace("usd_per_mtok_out: 2}", "usd_per_mtok_out: 2, tool_calls: text}")
        config = config.replace("{embedding_model: mini-embed}", f"{{embedding_model: mini-embed{defaults}}}")
        gateway.services.settings.config.write_text(config)
        requests: list[ChatRequest] = []

        def answer(request: ChatRequest, _: CallContext) -> Sequence[ChatDelta]:
            requests.append(request)
            return letters(replies[len(requests) - 1])

        gateway.model.script = answer
        return requests

    return script


def chunks(reply: Reply) -> list[ChatCompletionChunk]:
    assert reply.status == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line.startswith("data: {")]
    return [ChatCompletionChunk.model_validate_json(line, strict=True) for line in lines]


def shown_text(items: Sequence[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in items for choice in chunk.choices)


def test_an_agent_runs_the_tool_that_its_model_calls_in_text(gateway: Gateway, plan: Plan) -> None:
    requests = plan(SUM, "It is 42.")
    reply = gateway.send("POST", "/a1/agents/counting/chat", body={"message": "6 * 7?"})
    assert (reply.status, reply.json["message"]["content"], reply.json["finish_reason"]) == (200, "It is 42.", "stop")
    (call,) = reply.json["tool_calls"]
    assert (call["name"], call["arguments"], call["result"]["result"]) == ("calculator", {"expression": "6*7"}, 42)
    request, answer = requests[1].messages[-2:]
    assert (request.content, [called.name for called in request.tool_calls]) == ("", ["calculator"])
    assert answer.tool_call_id == request.tool_calls[0].id
    assert json.loads(remove_marks(answer.content))["result"] == 42


def test_the_stream_of_an_agent_shows_no_part_of_a_written_call(gateway: Gateway, plan: Plan) -> None:
    plan(f"<think>I need it.</think>\n{SUM}", "It is 42.")
    events = read_events(gateway.send("POST", "/a1/agents/counting/chat", body={"message": "6 * 7?", "stream": True}))
    assert "".join(token["content"] for token in of_type(events, "token")) == answer_text(events) == "It is 42."
    (call,) = [event for event in of_type(events, "tool_call") if event["ok"] is not None]
    assert (call["tool"], call["args"]) == ("calculator", {"expression": "6*7"})


def test_an_agents_answer_in_json_that_is_not_a_call_is_its_answer(gateway: Gateway, plan: Plan) -> None:
    written = '{"name": "Ada", "parameters": {"born": 1815}}'
    plan(written)
    reply = gateway.send("POST", "/a1/agents/counting/chat", body={"message": "Who?"})
    assert (reply.json["message"]["content"], reply.json["tool_calls"]) == (written, [])


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_tool_that_is_called_in_text_is_run(gateway: Gateway, plan: Plan, stream: bool) -> None:
    plan(SUM, "It is 42.", defaults=", tools_enabled_default: [calculator]")
    reply = gateway.send("POST", CHAT, body=BODY | {"stream": stream})
    if stream:
        assert shown_text(chunks(reply)) == "It is 42."
    else:
        assert reply.json["choices"][0]["message"]["content"] == "It is 42."
        assert reply.headers["spass-cost-sub-calls"] == "2"


def test_a_call_of_the_clients_tool_is_a_tool_call_of_the_answer(gateway: Gateway, plan: Plan) -> None:
    plan(f"[{WEATHER}, {WEATHER}]")
    reply = gateway.send("POST", CHAT, body=BODY | {"tools": [TOOL], "response_format": {"type": "json_object"}})
    (choice,) = ChatCompletion.model_validate(reply.json).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls = [call for call in choice.message.tool_calls or () if call.type == "function"]
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [("weather", {"city": "Köln"})] * 2
    assert len({call.id for call in calls}) == 2


def test_the_chunks_of_a_written_call_are_those_of_a_native_one(gateway: Gateway, plan: Plan) -> None:
    plan(f"\n{WEATHER}\n")
    items = chunks(gateway.send("POST", CHAT, body=BODY | {"tools": [TOOL], "stream": True}))
    assert shown_text(items) == ""
    pieces = [piece for chunk in items for choice in chunk.choices for piece in choice.delta.tool_calls or ()]
    assert [(piece.index, piece.type) for piece in pieces] == [(0, "function")]
    function = pieces[0].function
    assert function is not None
    assert (function.name, json.loads(function.arguments or "")) == ("weather", {"city": "Köln"})
    assert [choice.finish_reason for chunk in items for choice in chunk.choices if choice.finish_reason] == ["tool_calls"]


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}], ids=["no tools", "tool choice none"])
@pytest.mark.parametrize("stream", [False, True])
def test_without_offered_tools_the_same_text_is_the_answer(
    gateway: Gateway, plan: Plan, fields: dict[str, Any], stream: bool
) -> None:
    plan(WEATHER)
    reply = gateway.send("POST", CHAT, body=BODY | fields | {"stream": stream})
    text = shown_text(chunks(reply)) if stream else reply.json["choices"][0]["message"]["content"]
    assert text == WEATHER


def test_an_unmarked_model_keeps_what_it_writes(gateway: Gateway) -> None:
    gateway.model.script = letters(WEATHER)
    items = chunks(gateway.send("POST", CHAT, body=BODY | {"tools": [TOOL], "stream": True}))
    assert shown_text(items) == WEATHER
