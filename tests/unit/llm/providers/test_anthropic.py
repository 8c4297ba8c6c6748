"""Anthropic's Messages API, both ways."""

import json
import re
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import FinishReason, Image, Json, Message, Role, TokenUsage, ToolCall
from spass.llm.errors import (
    BackendAuthError,
    BackendBadRequest,
    BackendContextLength,
    BackendError,
    BackendRateLimited,
    BackendUnavailable,
)
from spass.llm.providers.anthropic_wire import DEFAULT_MAX_TOKENS, messages_body
from spass.llm.types import ChatDelta, ChatRequest, EmbeddingRequest, NamedTool, Provider, ToolChoice
from tests.unit.llm.scripted_upstream import (
    CALL,
    KEY,
    QUESTION,
    WEATHER,
    Answer,
    Payload,
    Upstream,
    context,
    deltas_of,
    provider_at,
    reply_of,
    request,
    text,
    whole,
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


def said(words: str) -> Payload:
    return {"type": "text", "text": words}


USE: Payload = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}}


def sse(*events: Payload) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events).encode()


def start() -> Payload:
    usage: Payload = {"input_tokens": 10, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": 1}
    return {"type": "message_start", "message": {"content": [], "stop_reason": None, "usage": usage}}


def block(index: int, content: Payload) -> Payload:
    return {"type": "content_block_start", "index": index, "content_block": content}


def more(index: int, **delta: Json) -> Payload:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def stopped(index: int) -> Payload:
    return {"type": "content_block_stop", "index": index}


def end(reason: str) -> Payload:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 5}}


STOP: Payload = {"type": "message_stop"}
PING: Payload = {"type": "ping"}

STREAM = sse(
    start(),
    PING,
    block(0, {"type": "thinking", "thinking": "", "signature": ""}),
    more(0, type="thinking_delta", thinking="hm"),
    more(0, type="signature_delta", signature="xyz"),
    stopped(0),
    block(1, said("")),
    more(1, type="text_delta", text="In Kö"),
    more(1, type="text_delta", text="ln 😀"),
    stopped(1),
    block(2, {**USE, "input": {}}),
    more(2, type="input_json_delta", partial_json=""),
    more(2, type="input_json_delta", partial_json='{"city": "Kö'),
    more(2, type="input_json_delta", partial_json='ln"}'),
    stopped(2),
    block(3, {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}),
    stopped(3),
    end("tool_use"),
    STOP,
)


async def test_what_is_known_of_the_cost_comes_with_the_first_words() -> None:
    """So that a caller who leaves then pays for it."""
    thinking = [block(0, {"type": "thinking", "thinking": ""}), more(0, type="thinking_delta", thinking="t" * 40), stopped(0)]
    later = more(2, type="thinking_delta", thinking="l" * 20)
    words = [block(1, said("")), more(1, type="text_delta", text="Tea"), more(1, type="text_delta", text="!"), stopped(1), later]
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
    said("In Köln 😀"),
    USE,
    {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    stop="tool_use",
)


@pytest.mark.parametrize("base_url", [None, "https://api.anthropic.com", "https://api.anthropic.com/v1"])
async def test_the_key_the_version_and_the_address_are_anthropics(base_url: str | None) -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    assert (await reply_of(anthropic(upstream, base_url))).message.content == "Hi"
    assert upstream.asked[0].url == "https://api.anthropic.com/v1/messages"
    assert upstream.asked[0].headers["x-api-key"] == KEY
    assert upstream.asked[0].headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in upstream.asked[0].headers


async def test_a_plain_question_is_asked_with_the_limit_the_format_demands() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(anthropic(upstream))
    assert upstream.body == {
        "model": "model-1",
        "max_tokens": DEFAULT_MAX_TOKENS,
        "messages": [{"role": "user", "content": [said(QUESTION.content)]}],
    }


async def test_choices_are_mapped_and_hints_that_the_format_has_not_are_left_out() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    asked = ChatRequest(
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
    await reply_of(anthropic(upstream), asked)
    assert {name: upstream.body[name] for name in upstream.body if name not in {"model", "messages"}} == {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.5,
        "stop_sequences": ["END"],
        "output_config": {"effort": "low"},
    }
    await reply_of(anthropic(upstream), replace(asked, top_p=1.0))  # which narrows nothing, and newer models refuse both
    assert "top_p" not in upstream.body


async def test_a_schema_that_must_be_matched_without_fail_is_the_models_promise() -> None:
    upstream = Upstream(whole(answer(said("{}"))))
    schema: Payload = {"type": "object", "properties": {}, "additionalProperties": False}
    wanted: Payload = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    strict = replace(WEATHER, strict=True)
    await reply_of(anthropic(upstream), replace(request(), response_format=wanted, tools=(strict, WEATHER)))
    assert upstream.body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    assert "system" not in upstream.body
    assert [cast(Payload, tool).get("strict") for tool in cast(list[Json], upstream.body["tools"])] == [True, None]


async def test_pictures_go_as_bytes_or_by_their_address() -> None:
    upstream = Upstream(whole(answer(said("A cat."))))
    far, near = Image("https://example.com/cat.png", "high"), Image("data:image/png;base64,iVBORw0KGgo=")
    await reply_of(anthropic(upstream), request(Message(Role.USER, "Which?", parts=(far, "Which?", near))))
    assert upstream.body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}},
                said("Which?"),
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
            ],
        }
    ]


async def test_names_and_ids_that_are_too_long_are_cut_and_still_told_apart() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    calls = (ToolCall("x" * 80 + "1", "n" * 80, "{}"), ToolCall("x" * 80 + "2", "n.", "{}"))
    answers = [Message(Role.TOOL, "rain", tool_call_id=call.id) for call in reversed(calls)]
    await reply_of(anthropic(upstream), request(QUESTION, Message(Role.ASSISTANT, "", calls), *answers))
    blocks = [
        block for message in cast(list[dict[str, list[Payload]]], upstream.body["messages"]) for block in message["content"]
    ]
    assert [block["id"] for block in blocks if "id" in block] == ["x" * 64, "x" * 54 + "_2"]
    assert [block["tool_use_id"] for block in blocks if "tool_use_id" in block] == ["x" * 54 + "_2", "x" * 64]
    assert [block["name"] for block in blocks if "name" in block] == ["n" * 64, "n_"]


async def test_system_messages_are_lifted_wherever_they_stand() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(
        anthropic(upstream),
        request(Message(Role.SYSTEM, "One."), QUESTION, Message(Role.SYSTEM, " "), Message(Role.SYSTEM, "Two.")),
    )
    assert upstream.body["system"] == "One.\n\nTwo."
    assert [message["role"] for message in cast(list[Payload], upstream.body["messages"])] == ["user"]


async def test_tool_calls_and_their_results_go_as_blocks_with_all_results_in_one_message() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    asked = request(
        QUESTION,
        Message(Role.ASSISTANT, "I look it up. ", (CALL, ToolCall("call.2", "now", ""))),
        Message(Role.TOOL, "rain", tool_call_id="call_1"),
        Message(Role.TOOL, "", tool_call_id="call.2"),
        Message(Role.USER, "And?"),
    )
    await reply_of(anthropic(upstream), replace(asked, tools=(WEATHER,)))
    assert upstream.body["messages"] == [
        {"role": "user", "content": [said(QUESTION.content)]},
        {
            "role": "assistant",
            "content": [
                said("I look it up."),
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln"}},
                {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": ""},
                said("And?"),
            ],
        },
    ]
    assert upstream.body["tools"] == [{"name": "weather", "description": WEATHER.description, "input_schema": WEATHER.parameters}]


@pytest.mark.parametrize(
    "arguments",
    ["{", "[1]", "null", "[" * 100_000, '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a":' * 975 + "1" + "}" * 975],
)
async def test_arguments_that_are_no_object_to_everybody_are_shown_as_they_were_written(arguments: str) -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(anthropic(upstream), request(QUESTION, Message(Role.ASSISTANT, "", (ToolCall("a", "b", arguments),))))
    messages = cast(list[dict[str, list[Payload]]], upstream.body["messages"])
    assert messages[1]["content"][0]["input"] == {"not_an_object": arguments}


async def test_blank_arguments_are_no_arguments() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(anthropic(upstream), request(QUESTION, Message(Role.ASSISTANT, "", (ToolCall("a", "b", " \n"),))))
    messages = cast(list[dict[str, list[Payload]]], upstream.body["messages"])
    assert messages[1]["content"][0]["input"] == {}


async def test_a_conversation_that_begins_with_a_summary_still_begins_with_the_user() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(anthropic(upstream), request(Message(Role.ASSISTANT, "[compaction summary]"), QUESTION))
    assert [message["role"] for message in cast(list[Payload], upstream.body["messages"])] == ["user", "assistant", "user"]


@pytest.mark.parametrize("silence", [(), (Message(Role.USER, " \n"),)])
async def test_where_the_user_has_said_nothing_yet_the_model_is_told_to_begin(silence: tuple[Message, ...]) -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(anthropic(upstream), request(Message(Role.SYSTEM, "Greet."), *silence))
    assert upstream.body["system"] == "Greet."
    assert upstream.body["messages"] == [{"role": "user", "content": [said("(Begin.)")]}]


async def test_blank_texts_are_left_out_since_the_format_refuses_them() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(anthropic(upstream), request(QUESTION, Message(Role.ASSISTANT, ""), Message(Role.USER, " ")))
    assert upstream.body["messages"] == [{"role": "user", "content": [said(QUESTION.content)]}]


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
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(anthropic(upstream), replace(request(), tools=(WEATHER,), tool_choice=choice))
    assert upstream.body.get("tool_choice") == sent


async def test_one_call_at_a_time_can_be_asked_for() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    await reply_of(anthropic(upstream), replace(request(), tools=(WEATHER,), extra={"parallel_tool_calls": False}))
    assert upstream.body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


async def test_tools_that_only_the_history_knows_are_declared_and_barred() -> None:
    upstream = Upstream(whole(answer(said("Hi"))))
    history = (QUESTION, Message(Role.ASSISTANT, "", (CALL,)), Message(Role.TOOL, "rain", tool_call_id=CALL.id))
    await reply_of(anthropic(upstream), request(*history))
    assert upstream.body["tools"] == [{"name": "weather", "description": "", "input_schema": {"type": "object"}}]
    assert upstream.body["tool_choice"] == {"type": "none"}


async def test_a_wanted_json_answer_is_asked_for_in_words() -> None:
    upstream = Upstream(whole(answer(said("{}"))))
    wanted: Payload = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    await reply_of(anthropic(upstream), replace(request(), response_format=wanted))
    assert "JSON" in str(upstream.body["system"])
    assert '{"type": "object"}' in str(upstream.body["system"])


async def test_a_collected_stream_is_the_blocking_reply() -> None:
    blocking = await reply_of(anthropic(Upstream(whole(BLOCKING))))
    streamed = await reply_of(anthropic(Upstream(text(STREAM))), request(stream=True))
    assert streamed == blocking
    calls = (ToolCall("toolu_1", "weather", '{"city": "Köln"}'), ToolCall("toolu_2", "now", "{}"))
    assert blocking.message == Message(Role.ASSISTANT, "In Köln 😀", calls)
    assert (blocking.finish_reason, blocking.usage) == (FinishReason.TOOL_CALLS, TokenUsage(113, 5))


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_where_the_network_cuts_a_stream_changes_nothing(cuts: list[int]) -> None:
    async def received(chunks: list[bytes]) -> list[ChatDelta]:
        return await deltas_of(anthropic(Upstream(Answer(chunks=chunks))), request(stream=True))

    pieces = [STREAM[begin:stop] for begin, stop in pairwise([0, *sorted(cuts), len(STREAM)])]
    assert anyio.run(received, pieces) == anyio.run(received, [STREAM])


words = st.text(max_size=8)
tool_uses = st.lists(st.tuples(st.text("ab_", min_size=1, max_size=4), st.dictionaries(words, words, max_size=2)), max_size=3)


@given(st.lists(words, max_size=4), tool_uses, st.integers(1, 9), st.sampled_from(["end_turn", "max_tokens", "tool_use"]))
def test_whatever_is_said_the_collected_stream_is_the_blocking_reply(
    contents: list[str], uses: list[tuple[str, dict[str, str]]], size: int, reason: str
) -> None:
    blocks: list[Payload] = [
        {"type": "tool_use", "id": f"t_{n}", "name": name, "input": args} for n, (name, args) in enumerate(uses)
    ]
    blocking = answer(said("".join(contents)), *blocks, stop=reason)
    events = [start(), block(0, said("")), *(more(0, type="text_delta", text=content) for content in contents), stopped(0)]
    for index, use in enumerate(blocks, start=1):
        written = json.dumps(use["input"], ensure_ascii=False)
        events += [block(index, {**use, "input": {}}), PING]
        events += [
            more(index, type="input_json_delta", partial_json=written[at : at + size])
            for at in range(0, len(written) if use["input"] else 0, size)
        ]
        events.append(stopped(index))

    async def compare() -> None:
        stream = sse(*events, end(reason), STOP)
        streamed = await reply_of(anthropic(Upstream(text(stream))), request(stream=True))
        assert streamed == await reply_of(anthropic(Upstream(whole(blocking))))

    anyio.run(compare)


@pytest.mark.parametrize(
    ("said_reason", "meant"),
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
async def test_stop_reasons_are_mapped(said_reason: str, meant: FinishReason) -> None:
    blocking = await deltas_of(anthropic(Upstream(whole(answer(stop=said_reason)))))
    streamed = await deltas_of(anthropic(Upstream(text(sse(start(), end(said_reason), STOP)))), request(stream=True))
    for deltas in (blocking, streamed):
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [meant]


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
async def test_an_error_event_is_the_failure_it_names(kind: str, failure: type[BackendError]) -> None:
    stream = sse(start(), block(0, said("")), {"type": "error", "error": {"type": kind, "message": "so it is"}})
    with pytest.raises(failure, match="so it is"):
        await deltas_of(anthropic(Upstream(text(stream))), request(stream=True))


async def test_a_prompt_that_is_too_long_is_told_apart() -> None:
    error: Payload = {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}
    with pytest.raises(BackendContextLength, match="210000"):
        await reply_of(anthropic(Upstream(whole({"type": "error", "error": error}, 400))))


@pytest.mark.parametrize("events", [(), (start(),), (start(), block(0, said("Hi")), stopped(0)), (PING, STOP)])
async def test_a_stream_without_its_end_is_a_failure(events: tuple[Payload, ...]) -> None:
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
async def test_an_answer_that_is_none_is_a_failure_and_no_crash(body: bytes) -> None:
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
def test_no_order_of_events_crashes_the_provider(events: list[Payload]) -> None:
    async def survive() -> None:
        with suppress(BackendError):
            await deltas_of(anthropic(Upstream(text(sse(*events)))), request(stream=True))

    anyio.run(survive)


async def test_there_are_no_embeddings() -> None:
    with pytest.raises(BackendAuthError):
        await anthropic(Upstream(whole({}))).embed(EmbeddingRequest("claude", ("a",)), context())


@given(st.lists(st.sampled_from(["\ud83d", "\ude00", "\ud800", "a", "😀"]), min_size=1, max_size=8), st.booleans())
def test_halves_of_surrogate_pairs_are_joined_or_replaced(pieces: list[str], stream: bool) -> None:
    joined = "".join(pieces)
    if stream:
        events = [
            start(),
            *(more(0, type="text_delta", text=words) for words in pieces),
            block(1, {**USE, "input": {}}),
            *(more(1, type="input_json_delta", partial_json=words) for words in pieces),
            end("tool_use"),
            STOP,
        ]
        body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    else:
        body = json.dumps(answer(said(joined), {**USE, "input": {"x": joined}}))
    reply = anyio.run(reply_of, anthropic(Upstream(text(body))), request(stream=stream))
    expected = joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert reply.message.content == expected
    assert reply.message.tool_calls[0].arguments == (expected if stream else json.dumps({"x": expected}, ensure_ascii=False))


def test_a_body_of_ids_that_are_all_alike_takes_no_time() -> None:
    calls = [ToolCall(chr(0x4E00 + number), "weather", "{}") for number in range(9000)]
    results = [Message(Role.TOOL, "rain", tool_call_id=call.id) for call in reversed(calls)]
    started = time.process_time()
    messages_body(request(QUESTION, Message(Role.ASSISTANT, "", tuple(calls)), *results))
    assert time.process_time() - started < 2  # what grows with the square takes ten seconds


@given(
    st.lists(st.lists(st.sampled_from(["a.b", "a:b", "a_b", "a_b_2", "", "call_0", "ü"]), min_size=1, max_size=4), max_size=4),
    st.randoms(use_true_random=False),
)
def test_each_result_answers_its_own_call_whatever_the_ids_were(turns: list[list[str]], dice: Random) -> None:
    history = [QUESTION]
    for identities in turns:
        calls = [ToolCall(identity, "weather", json.dumps({"is": number})) for number, identity in enumerate(identities)]
        history.append(Message(Role.ASSISTANT, "", tuple(calls)))
        unique = len(set(identities)) == len(identities)
        order = dice.sample(range(len(calls)), len(calls)) if unique else range(len(calls))
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
async def test_a_count_that_cannot_be_believed_says_nothing_and_takes_no_answer_away(
    usage: Json, tokens: TokenUsage | None
) -> None:
    body = answer(said("Hi")) | {"usage": usage}
    reply = await reply_of(anthropic(Upstream(whole(body))))
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
async def test_a_stream_is_counted_by_what_is_said_at_its_end(first: Json, last: Json, tokens: TokenUsage) -> None:
    begin: Payload = {"type": "message_start", "message": {"content": [], "stop_reason": None, "usage": first}}
    end: Payload = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last}
    stream = sse(begin, block(0, {"type": "text", "text": "Hi"}), end, {"type": "message_stop"})
    reply = await reply_of(anthropic(Upstream(text(stream))), request(stream=True))
    assert (reply.message.content, reply.usage) == ("Hi", tokens)
