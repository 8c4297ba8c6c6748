"""Anthropic's Messages API, blocking and streaming."""

import json
import re
import time
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import FinishReason, Image, Json, Message, Role, TokenUsage, ToolCall
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendContextLength,
    BackendRateLimited,
    BackendUnavailable,
)
from spass.models.providers.anthropic import DEFAULT_MAX_TOKENS, messages_body
from spass.models.types import ChatRequest, EmbeddingRequest, NamedTool, Provider, ToolChoice
from tests.unit.models.scripted_upstream import (
    CALL,
    KEY,
    QUESTION,
    WEATHER,
    Payload,
    Upstream,
    body_of,
    context,
    deltas_of,
    json_answer,
    provider_at,
    reply_of,
    request,
    text,
)

pytestmark = pytest.mark.anyio


def anthropic(upstream: Upstream, base_url: str | None = None) -> Provider:
    return provider_at(upstream, "anthropic", base_url=base_url)


def answer(*blocks: Payload, stop: str | None = "end_turn") -> Payload:
    usage: Payload = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 100,
        "output_tokens": 5,
        "service_tier": "standard",
    }
    return {"type": "message", "role": "assistant", "content": blocks, "stop_reason": stop, "usage": usage}


def text_block(words: str) -> Payload:
    return {"type": "text", "text": words}


async def sent_body(chat_request: ChatRequest) -> Payload:
    return await body_of(chat_request, answer(text_block("Hi")), "anthropic")


USE: Payload = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}}


def sse(*events: Payload) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events).encode()


def start() -> Payload:
    usage: Payload = {"input_tokens": 10, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": 1}
    return {"type": "message_start", "message": {"content": [], "stop_reason": None, "usage": usage}}


def block(index: int, content: Payload) -> Payload:
    return {"type": "content_block_start", "index": index, "content_block": content}


def block_delta(index: int, **delta: Json) -> Payload:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def block_stop(index: int) -> Payload:
    return {"type": "content_block_stop", "index": index}


def end(reason: str) -> Payload:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 5}}


STOP: Payload = {"type": "message_stop"}
PING: Payload = {"type": "ping"}

STREAM = sse(
    start(),
    PING,
    block(0, {"type": "thinking", "thinking": "", "signature": ""}),
    block_delta(0, type="thinking_delta", thinking="hm"),
    block_delta(0, type="signature_delta", signature="xyz"),
    block_stop(0),
    block(1, text_block("")),
    block_delta(1, type="text_delta", text="In Kö"),
    block_delta(1, type="text_delta", text="ln 😀"),
    block_stop(1),
    block(2, {**USE, "input": {}}),
    block_delta(2, type="input_json_delta", partial_json=""),
    block_delta(2, type="input_json_delta", partial_json='{"city": "Kö'),
    block_delta(2, type="input_json_delta", partial_json='ln"}'),
    block_stop(2),
    block(3, {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}),
    block_stop(3),
    end("tool_use"),
    STOP,
)


async def test_the_first_delta_has_the_prompt_tokens() -> None:
    """A caller who disconnects after the first delta pays for the prompt."""
    thinking = [
        block(0, {"type": "thinking", "thinking": ""}),
        block_delta(0, type="thinking_delta", thinking="t" * 40),
        block_stop(0),
    ]
    later = block_delta(2, type="thinking_delta", thinking="l" * 20)
    words = [
        block(1, text_block("")),
        block_delta(1, type="text_delta", text="Tea"),
        block_delta(1, type="text_delta", text="!"),
        block_stop(1),
        later,
    ]
    stream = sse(start(), *thinking, *words, end("end_turn"), STOP)
    deltas = await deltas_of(provider_at(Upstream(text(stream)), "anthropic"), request(stream=True))
    assert [(delta.content, delta.characters, delta.usage) for delta in deltas] == [
        ("Tea", 43, TokenUsage(113)),
        ("!", 1, None),
        ("", 20, None),
        ("", 0, TokenUsage(113, 5)),
    ]


BLOCKING = answer(
    {"type": "thinking", "thinking": "hm", "signature": "xyz"},
    text_block("In Köln 😀"),
    USE,
    {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    stop="tool_use",
)


@pytest.mark.parametrize("base_url", [None, "https://api.anthropic.com", "https://api.anthropic.com/v1"])
async def test_requests_have_the_key_the_version_and_the_address(base_url: str | None) -> None:
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    assert (await reply_of(anthropic(upstream, base_url))).message.content == "Hi"
    assert upstream.requests[0].url == "https://api.anthropic.com/v1/messages"
    assert upstream.requests[0].headers["x-api-key"] == KEY
    assert upstream.requests[0].headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in upstream.requests[0].headers


async def test_a_plain_question_has_the_default_token_limit() -> None:
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    await reply_of(anthropic(upstream))
    assert upstream.body == {
        "model": "model-1",
        "max_tokens": DEFAULT_MAX_TOKENS,
        "messages": [{"role": "user", "content": [text_block(QUESTION.content)]}],
    }


async def test_fields_are_mapped_and_unknown_hints_omitted() -> None:
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    chat_request = ChatRequest(
        "claude",
        (QUESTION,),
        temperature=0.5,
        top_p=0.5,
        max_tokens=9,
        stop=("END",),
        seed=1,
        extra={"logit_bias": {}, "reasoning_effort": "low", "user": "u"},
        stream=False,
    )
    await reply_of(anthropic(upstream), chat_request)
    assert {name: upstream.body[name] for name in upstream.body if name not in {"model", "messages"}} == {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.5,
        "stop_sequences": ["END"],
        "output_config": {"effort": "low"},
    }
    await reply_of(anthropic(upstream), replace(chat_request, top_p=1.0))  # 1 has no effect, and newer models refuse both
    assert "top_p" not in upstream.body


async def test_a_strict_schema_is_sent_to_the_provider() -> None:
    schema: Payload = {"type": "object", "properties": {}, "additionalProperties": False}
    wanted: Payload = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    strict = replace(WEATHER, strict=True)
    body = await sent_body(replace(request(), response_format=wanted, tools=(strict, WEATHER)))
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    assert "system" not in body
    assert [cast(Payload, tool).get("strict") for tool in cast(list[Json], body["tools"])] == [True, None]


async def test_pictures_are_sent_as_bytes_or_urls() -> None:
    far, near = Image("https://example.com/cat.png", "high"), Image("data:image/png;base64,iVBORw0KGgo=")
    body = await sent_body(request(Message(Role.USER, "Which?", parts=(far, "Which?", near))))
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}},
                text_block("Which?"),
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
            ],
        }
    ]


async def test_long_names_and_ids_are_cut_and_stay_unique() -> None:
    calls = (ToolCall("x" * 80 + "1", "n" * 80, "{}"), ToolCall("x" * 80 + "2", "n.", "{}"))
    answers = [Message(Role.TOOL, "rain", tool_call_id=call.id) for call in reversed(calls)]
    body = await sent_body(request(QUESTION, Message(Role.ASSISTANT, "", calls), *answers))
    blocks = [block for message in cast(list[dict[str, list[Payload]]], body["messages"]) for block in message["content"]]
    assert [block["id"] for block in blocks if "id" in block] == ["x" * 64, "x" * 54 + "_2"]
    assert [block["tool_use_id"] for block in blocks if "tool_use_id" in block] == ["x" * 54 + "_2", "x" * 64]
    assert [block["name"] for block in blocks if "name" in block] == ["n" * 64, "n_"]


async def test_all_system_messages_are_in_the_system_field() -> None:
    body = await sent_body(
        request(Message(Role.SYSTEM, "One."), QUESTION, Message(Role.SYSTEM, " "), Message(Role.SYSTEM, "Two."))
    )
    assert body["system"] == "One.\n\nTwo."
    assert [message["role"] for message in cast(list[Payload], body["messages"])] == ["user"]


async def test_tool_results_become_blocks_of_one_message() -> None:
    chat_request = request(
        QUESTION,
        Message(Role.ASSISTANT, "I look it up. ", (CALL, ToolCall("call.2", "now", ""))),
        Message(Role.TOOL, "rain", tool_call_id="call_1"),
        Message(Role.TOOL, "", tool_call_id="call.2"),
        Message(Role.USER, "And?"),
    )
    body = await sent_body(replace(chat_request, tools=(WEATHER,)))
    assert body["messages"] == [
        {"role": "user", "content": [text_block(QUESTION.content)]},
        {
            "role": "assistant",
            "content": [
                text_block("I look it up."),
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln"}},
                {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": ""},
                text_block("And?"),
            ],
        },
    ]
    assert body["tools"] == [{"name": "weather", "description": WEATHER.description, "input_schema": WEATHER.parameters}]


@pytest.mark.parametrize(
    "arguments",
    [" \n", "{", "[1]", "null", "[" * 100_000, '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a":' * 975 + "1" + "}" * 975],
)
async def test_arguments_that_are_not_an_object_are_wrapped(arguments: str) -> None:
    body = await sent_body(request(QUESTION, Message(Role.ASSISTANT, "", (ToolCall("a", "b", arguments),))))
    messages = cast(list[dict[str, list[Payload]]], body["messages"])
    assert messages[1]["content"][0]["input"] == ({"not_an_object": arguments} if arguments.strip() else {})


async def test_a_conversation_that_begins_with_a_summary_has_a_user_turn_first() -> None:
    body = await sent_body(request(Message(Role.ASSISTANT, "[compaction summary]"), QUESTION))
    assert [message["role"] for message in cast(list[Payload], body["messages"])] == ["user", "assistant", "user"]


@pytest.mark.parametrize("blank_messages", [(), (Message(Role.USER, " \n"),)])
async def test_a_conversation_without_user_messages_gets_a_placeholder(blank_messages: tuple[Message, ...]) -> None:
    body = await sent_body(request(Message(Role.SYSTEM, "Greet."), *blank_messages))
    assert body["system"] == "Greet."
    assert body["messages"] == [{"role": "user", "content": [text_block("(Begin.)")]}]


async def test_blank_texts_are_omitted() -> None:
    body = await sent_body(request(QUESTION, Message(Role.ASSISTANT, ""), Message(Role.USER, " ")))
    assert body["messages"] == [{"role": "user", "content": [text_block(QUESTION.content)]}]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, None),
        ("auto", {"type": "auto"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        (NamedTool("weather"), {"type": "tool", "name": "weather"}),
    ],
)
async def test_tool_choices_are_mapped(choice: ToolChoice | None, sent: Json) -> None:
    body = await sent_body(replace(request(), tools=(WEATHER,), tool_choice=choice))
    assert body.get("tool_choice") == sent


async def test_parallel_tool_calls_can_be_disabled() -> None:
    body = await sent_body(replace(request(), tools=(WEATHER,), extra={"parallel_tool_calls": False}))
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


async def test_tools_of_the_history_are_defined_and_not_callable() -> None:
    history = (QUESTION, Message(Role.ASSISTANT, "", (CALL,)), Message(Role.TOOL, "rain", tool_call_id=CALL.id))
    body = await sent_body(request(*history))
    assert body["tools"] == [{"name": "weather", "description": "", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}


async def test_a_json_response_format_becomes_an_instruction() -> None:
    wanted: Payload = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    body = await sent_body(replace(request(), response_format=wanted))
    assert "JSON" in str(body["system"])
    assert '{"type": "object"}' in str(body["system"])


async def test_a_collected_stream_equals_the_blocking_reply() -> None:
    blocking = await reply_of(anthropic(Upstream(json_answer(BLOCKING))))
    streamed = await reply_of(anthropic(Upstream(text(STREAM))), request(stream=True))
    assert streamed == blocking
    calls = (ToolCall("toolu_1", "weather", '{"city": "Köln"}'), ToolCall("toolu_2", "now", "{}"))
    assert blocking.message == Message(Role.ASSISTANT, "In Köln 😀", calls)
    assert (blocking.finish_reason, blocking.usage) == (FinishReason.TOOL_CALLS, TokenUsage(113, 5))


words = st.text(max_size=8)
tool_uses = st.lists(st.tuples(st.text("ab_", min_size=1, max_size=4), st.dictionaries(words, words, max_size=2)), max_size=3)


@given(st.lists(words, max_size=4), tool_uses, st.integers(1, 9), st.sampled_from(["end_turn", "max_tokens", "tool_use"]))
def test_any_collected_stream_equals_the_blocking_reply(
    contents: list[str], uses: list[tuple[str, dict[str, str]]], size: int, reason: str
) -> None:
    blocks: list[Payload] = [
        {"type": "tool_use", "id": f"t_{n}", "name": name, "input": args} for n, (name, args) in enumerate(uses)
    ]
    blocking = answer(text_block("".join(contents)), *blocks, stop=reason)
    events = [
        start(),
        block(0, text_block("")),
        *(block_delta(0, type="text_delta", text=content) for content in contents),
        block_stop(0),
    ]
    for index, use in enumerate(blocks, start=1):
        arguments = json.dumps(use["input"], ensure_ascii=False)
        events += [block(index, {**use, "input": {}}), PING]
        events += [
            block_delta(index, type="input_json_delta", partial_json=arguments[at : at + size])
            for at in range(0, len(arguments) if use["input"] else 0, size)
        ]
        events.append(block_stop(index))

    async def compare() -> None:
        stream = sse(*events, end(reason), STOP)
        streamed = await reply_of(anthropic(Upstream(text(stream))), request(stream=True))
        assert streamed == await reply_of(anthropic(Upstream(json_answer(blocking))))

    anyio.run(compare)


@pytest.mark.parametrize(
    ("stop_reason", "expected"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("pause_turn", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("something_new", FinishReason.STOP),
    ],
)
async def test_stop_reasons_are_mapped(stop_reason: str, expected: FinishReason) -> None:
    blocking = await deltas_of(anthropic(Upstream(json_answer(answer(stop=stop_reason)))))
    streamed = await deltas_of(anthropic(Upstream(text(sse(start(), end(stop_reason), STOP)))), request(stream=True))
    for deltas in (blocking, streamed):
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [expected]


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("overloaded_error", BackendUnavailable),
        ("api_error", BackendUnavailable),
        ("rate_limit_error", BackendRateLimited),
        ("authentication_error", BackendAuthError),
        ("invalid_request_error", BackendBadRequest),
        ("something_new", BackendUnavailable),
    ],
)
async def test_each_error_event_has_its_failure(kind: str, failure: type[AttemptFailed]) -> None:
    stream = sse(start(), block(0, text_block("")), {"type": "error", "error": {"type": kind, "message": "so it is"}})
    with pytest.raises(failure, match="so it is"):
        await deltas_of(anthropic(Upstream(text(stream))), request(stream=True))


async def test_a_prompt_that_is_too_long_raises_context_length() -> None:
    error: Payload = {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}
    with pytest.raises(BackendContextLength, match="210000"):
        await reply_of(anthropic(Upstream(json_answer({"type": "error", "error": error}, 400))))


@pytest.mark.parametrize("events", [(), (start(),), (start(), block(0, text_block("Hi")), block_stop(0)), (PING, STOP)])
async def test_an_incomplete_stream_is_a_failure(events: tuple[Payload, ...]) -> None:
    with pytest.raises(BackendUnavailable):
        await deltas_of(anthropic(Upstream(text(sse(*events)))), request(stream=True))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"content": "Hi", "stop_reason": "end_turn"}',
        b'{"content": [{"type": "tool_use"}], "stop_reason": "tool_use"}',
        b'{"content": [{"type": "text", "text": 1}], "stop_reason": "end_turn"}',
        b'{"content": []}',
        b'{"content": ' + b"[" * 100_000,
    ],
)
async def test_a_malformed_answer_is_a_failure(body: bytes) -> None:
    with pytest.raises(BackendUnavailable):
        await deltas_of(anthropic(Upstream(text(body))))


events_like: st.SearchStrategy[Payload] = st.fixed_dictionaries(
    {"type": st.sampled_from(["message_start", "content_block_start", "content_block_delta", "message_delta", "error", "ping"])},
    optional={
        "index": st.integers(-1, 2),
        "content_block": st.sampled_from([None, {}, {"type": "text"}, {"type": "tool_use"}, USE, []]),
        "delta": st.sampled_from(
            [
                None,
                {},
                {"type": "input_json_delta", "partial_json": "{"},
                {"type": "text_delta", "text": "x"},
                {"stop_reason": "x"},
            ]
        ),
        "message": st.sampled_from([None, {}, {"content": []}]),
        "usage": st.sampled_from([None, {}, {"output_tokens": -1}, {"output_tokens": 1}]),
        "error": st.sampled_from([None, {}, "text", {"type": []}]),
    },
)


@given(st.lists(events_like, max_size=6))
def test_events_in_any_order_give_deltas_or_a_failure(events: list[Payload]) -> None:
    async def collect_or_fail() -> None:
        with suppress(AttemptFailed):
            await deltas_of(anthropic(Upstream(text(sse(*events)))), request(stream=True))

    anyio.run(collect_or_fail)


async def test_there_are_no_embeddings() -> None:
    with pytest.raises(BackendAuthError):
        await anthropic(Upstream(json_answer({}))).embed(EmbeddingRequest("claude", ("a",)), context())


@given(st.lists(st.sampled_from(["\ud83d", "\ude00", "\ud800", "a", "😀"]), min_size=1, max_size=8), st.booleans())
def test_halves_of_surrogate_pairs_are_joined_or_replaced(pieces: list[str], stream: bool) -> None:
    joined = "".join(pieces)
    if stream:
        events = [
            start(),
            *(block_delta(0, type="text_delta", text=words) for words in pieces),
            block(1, {**USE, "input": {}}),
            *(block_delta(1, type="input_json_delta", partial_json=words) for words in pieces),
            end("tool_use"),
            STOP,
        ]
        body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    else:
        body = json.dumps(answer(text_block(joined), {**USE, "input": {"x": joined}}))
    reply = anyio.run(reply_of, anthropic(Upstream(text(body))), request(stream=stream))
    expected = joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert reply.message.content == expected
    assert reply.message.tool_calls[0].arguments == (expected if stream else json.dumps({"x": expected}, ensure_ascii=False))


def test_the_work_for_equal_ids_is_linear() -> None:
    calls = [ToolCall(chr(0x4E00 + number), "weather", "{}") for number in range(9000)]
    results = [Message(Role.TOOL, "rain", tool_call_id=call.id) for call in reversed(calls)]
    start_time = time.process_time()
    messages_body(request(QUESTION, Message(Role.ASSISTANT, "", tuple(calls)), *results))
    assert time.process_time() - start_time < 2  # quadratic work takes ten seconds


@given(
    st.lists(st.lists(st.sampled_from(["a.b", "a:b", "a_b", "a_b_2", "", "call_0", "ü"]), min_size=1, max_size=4), max_size=4),
    st.randoms(use_true_random=False),
)
def test_each_result_has_the_id_of_its_call(turns: list[list[str]], random: Random) -> None:
    history = [QUESTION]
    for identities in turns:
        calls = [ToolCall(identity, "weather", json.dumps({"is": number})) for number, identity in enumerate(identities)]
        history.append(Message(Role.ASSISTANT, "", tuple(calls)))
        unique = len(set(identities)) == len(identities)
        order = random.sample(range(len(calls)), len(calls)) if unique else range(len(calls))
        history += [Message(Role.TOOL, str(number), tool_call_id=identities[number]) for number in order]
    sent = cast(list[dict[str, list[dict[str, Json]]]], messages_body(request(*history))["messages"])
    blocks = [block for message in sent for block in message["content"]]
    uses = {block["id"]: block["input"] for block in blocks if block["type"] == "tool_use"}
    results = {block["tool_use_id"]: {"is": int(str(block["content"]))} for block in blocks if block["type"] == "tool_result"}
    assert len(uses) == sum(map(len, turns))
    assert uses == results
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", str(identity)) for identity in uses)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({}, TokenUsage()),
        ({"input_tokens": 0, "output_tokens": 0}, TokenUsage()),
        ({"input_tokens": 10, "output_tokens": -5}, TokenUsage(10)),
        ({"input_tokens": 10, "cache_read_input_tokens": 10**13, "output_tokens": "many"}, TokenUsage(10)),
        ({"input_tokens": 0, "cache_read_input_tokens": 100, "output_tokens": 5}, TokenUsage(100, 5)),
        ("lots", None),
    ],
)
async def test_an_invalid_token_count_does_not_fail_the_answer(usage: Json, tokens: TokenUsage | None) -> None:
    body = answer(text_block("Hi")) | {"usage": usage}
    reply = await reply_of(anthropic(Upstream(json_answer(body))))
    assert (reply.message.content, reply.usage) == ("Hi", tokens)


@pytest.mark.parametrize(
    ("first", "last", "tokens"),
    [
        ({"input_tokens": 10, "output_tokens": 1}, {"output_tokens": 5}, TokenUsage(10, 5)),
        ({"input_tokens": 10, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 5}, TokenUsage(10, 5)),
        ({"input_tokens": 10, "output_tokens": 1}, {}, TokenUsage(10)),
        ({"input_tokens": 10, "output_tokens": 1}, None, TokenUsage(10)),
        ({}, {"input_tokens": 10, "output_tokens": 5}, TokenUsage(10, 5)),
        ("lots", {"output_tokens": -5}, TokenUsage()),
    ],
)
async def test_the_last_usage_of_a_stream_counts(first: Json, last: Json, tokens: TokenUsage) -> None:
    begin: Payload = {"type": "message_start", "message": {"content": [], "stop_reason": None, "usage": first}}
    end: Payload = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last}
    stream = sse(begin, block(0, {"type": "text", "text": "Hi"}), end, {"type": "message_stop"})
    reply = await reply_of(anthropic(Upstream(text(stream))), request(stream=True))
    assert (reply.message.content, reply.usage) == ("Hi", tokens)
