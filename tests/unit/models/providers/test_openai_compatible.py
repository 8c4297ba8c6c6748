"""OpenAI and xAI: two providers with one format. Ollama has it for embeddings."""

import base64
import json
import struct
import time
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
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
    BackendCannotStream,
    BackendContextLength,
    BackendRateLimited,
    BackendUnavailable,
)
from spass.models.providers.openai_reader import OpenAiReader
from spass.models.providers.sse import ServerSentEvent
from spass.models.types import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    NamedTool,
    ReplyBuilder,
    ToolChoice,
)
from tests.unit.collected_replies import collect_deltas
from tests.unit.models.scripted_upstream import (
    CALL,
    KEY,
    QUESTION,
    WEATHER,
    Answer,
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

USAGE: Payload = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
TOOL_CALL: Payload = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": CALL.arguments}}


async def sent_body(chat_request: ChatRequest) -> Payload:
    return await body_of(chat_request, answer({"content": "Hi"}))


def answer(message: Payload, finish: str | None = "stop") -> Payload:
    return {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": USAGE}


def chunk(finish: str | None = None, **delta: Json) -> Payload:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}


def sse(*payloads: Json, done: bool = True) -> bytes:
    lines = [json.dumps(payload, ensure_ascii=False) for payload in payloads] + ["[DONE]"] * done
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def piece(index: int | None, arguments: str, identity: str | None = None, name: str | None = None) -> Payload:
    return {"index": index, "id": identity, "function": {"name": name, "arguments": arguments}}


STREAM = sse(
    chunk(role="assistant", content=""),
    chunk(content="In Kö"),
    chunk(content="ln 😀"),
    chunk(tool_calls=[piece(0, "", "call_1", "weather")]),
    chunk(tool_calls=[piece(0, '{"city": "Kö')]),
    chunk(tool_calls=[piece(0, 'ln"}')]),
    chunk("tool_calls"),
    {"choices": [], "usage": USAGE},
)
BLOCKING = answer({"role": "assistant", "content": "In Köln 😀", "tool_calls": [TOOL_CALL]}, "tool_calls")


@pytest.mark.parametrize(
    ("provider", "base_url", "url"),
    [
        ("openai", None, "https://api.openai.com/v1/chat/completions"),
        ("openai", "http://127.0.0.1:9/compatible/v1/", "http://127.0.0.1:9/compatible/v1/chat/completions"),
        ("xai", None, "https://api.x.ai/v1/chat/completions"),
    ],
)
async def test_each_provider_has_its_address(provider: str, base_url: str | None, url: str) -> None:
    upstream = Upstream(json_answer(answer({"content": "Hi"})))
    assert (await reply_of(provider_at(upstream, provider, base_url=base_url))).message.content == "Hi"
    assert upstream.requests[0].url == url


async def test_the_key_is_a_bearer_token() -> None:
    upstream = Upstream(json_answer(answer({"content": "Hi"})))
    await reply_of(provider_at(upstream))
    await reply_of(provider_at(upstream, "xai", key=None))
    assert [chat_request.headers.get("authorization") for chat_request in upstream.requests] == [f"Bearer {KEY}", None]


async def test_the_headers_of_a_call_cannot_replace_the_key() -> None:
    upstream = Upstream(json_answer(answer({"content": "Hi"})))
    surroundings = context(SPASS_Caller_Depth="2", Authorization="Bearer of the caller")
    [_] = [delta async for delta in provider_at(upstream).chat(request(), surroundings)]
    assert upstream.requests[0].headers["spass-caller-depth"] == "2"
    assert upstream.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_every_field_of_a_request_is_in_the_body() -> None:
    upstream = Upstream(json_answer(answer({"content": "Hi"})))
    chat_request = ChatRequest(
        "gpt-x",
        (
            Message(Role.SYSTEM, "Be brief."),
            QUESTION,
            Message(Role.ASSISTANT, "", (CALL,)),
            Message(Role.TOOL, "rain", tool_call_id="call_1"),
        ),
        tools=(WEATHER,),
        tool_choice=NamedTool("weather"),
        temperature=0.0,
        top_p=0.5,
        max_tokens=9,
        stop=("END",),
        seed=0,
        response_format={"type": "json_object"},
        extra={"logit_bias": {"1": 2}, "model": "another"},
    )
    await reply_of(provider_at(upstream, base_url="http://127.0.0.1:9/v1"), chat_request)
    assert upstream.body == {
        "model": "gpt-x",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": QUESTION.content},
            {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "weather", "description": WEATHER.description, "parameters": WEATHER.parameters},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 9,
        "stop": ["END"],
        "seed": 0,
        "response_format": {"type": "json_object"},
        "logit_bias": {"1": 2},
    }


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
async def test_a_tool_choice_is_sent_only_with_tools(choice: ToolChoice) -> None:
    upstream = Upstream(json_answer(answer({"content": "Hi"})))
    chat_request = replace(request(), tool_choice=choice, extra={"parallel_tool_calls": False})
    await reply_of(provider_at(upstream), replace(chat_request, tools=(WEATHER,)))
    assert (upstream.body["tool_choice"], upstream.body["parallel_tool_calls"]) == (choice, False)
    await reply_of(provider_at(upstream), chat_request)
    assert not {"tool_choice", "parallel_tool_calls"} & set(upstream.body)


REASONING = {"reasoning_content": "r" * 40, "reasoning": "r" * 40}  # some servers send it twice


@pytest.mark.parametrize("names", [["reasoning_content"], ["reasoning"], ["reasoning_content", "reasoning"]])
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_counted_and_not_passed_on(names: list[str], stream: bool) -> None:
    reasoning = {name: REASONING[name] for name in names}
    streamed = sse(chunk(**reasoning), chunk(content="Tea"), chunk(**reasoning), chunk("stop"))
    blocking = {"choices": [{"message": {"content": "Tea", **{name: 2 * text for name, text in reasoning.items()}}}]}
    deltas = await deltas_of(provider_at(Upstream(text(streamed) if stream else json_answer(blocking))), request(stream=stream))
    assert sum(delta.characters for delta in deltas) == 80 + len("Tea")
    assert deltas[0].content == "Tea", "a delta without text came before the first text"
    assert collect_deltas(deltas).message.content == "Tea"


@pytest.mark.parametrize("reasoning", [None, 3, {"text": "hm"}, ["hm"]])
async def test_reasoning_that_is_not_text_is_ignored(reasoning: Json) -> None:
    answer = json_answer({"choices": [{"message": {"content": "Tea", "reasoning": reasoning, "reasoning_content": reasoning}}]})
    assert (await reply_of(provider_at(Upstream(answer)))).message.content == "Tea"


async def test_an_answer_of_reasoning_alone_is_counted() -> None:
    deltas = await deltas_of(provider_at(Upstream(text(sse(chunk(reasoning="r" * 40))))), request(stream=True))
    assert [delta.characters for delta in deltas] == [40]


async def test_openai_and_reasoning_models_get_max_completion_tokens() -> None:
    upstream = Upstream(json_answer(answer({"content": "Hi"})))
    elsewhere = "http://127.0.0.1:9/v1"
    for base_url, model in ((None, "gpt-4o"), (elsewhere, "o3-mini"), (elsewhere, "llama"), (None, "o1-x")):
        await reply_of(provider_at(upstream, base_url=base_url), ChatRequest(model, (QUESTION,), max_tokens=5))
    names = [next(name for name in chat_request.body if "tokens" in name) for chat_request in upstream.requests]
    assert names == ["max_completion_tokens", "max_completion_tokens", "max_tokens", "max_completion_tokens"]


async def test_a_stream_requests_its_usage() -> None:
    upstream = Upstream(text(STREAM))
    await deltas_of(provider_at(upstream), request(stream=True))
    assert upstream.body["stream"] is True
    assert upstream.body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("provider", ["openai", "xai"])
async def test_a_collected_stream_equals_the_blocking_reply(provider: str) -> None:
    blocking = await reply_of(provider_at(Upstream(json_answer(BLOCKING)), provider))
    streamed = await reply_of(provider_at(Upstream(text(STREAM)), provider), request(stream=True))
    assert streamed == blocking
    assert blocking.message == Message(Role.ASSISTANT, "In Köln 😀", (CALL,))
    assert (blocking.finish_reason, blocking.usage) == (FinishReason.TOOL_CALLS, TokenUsage(11, 7))


async def test_each_chunk_is_one_delta() -> None:
    deltas = await deltas_of(provider_at(Upstream(text(STREAM))), request(stream=True))
    assert [delta.content for delta in deltas if delta.content] == ["In Kö", "ln 😀"]


words = st.text(max_size=8)
tool_calls = st.lists(st.tuples(st.text("ab_", min_size=1, max_size=4), st.lists(words, max_size=3)), max_size=3)


@given(st.lists(words, max_size=5), tool_calls, st.sampled_from(["stop", "length"]), st.integers(1, 4))
def test_any_collected_stream_equals_the_blocking_reply(
    contents: list[str], calls: list[tuple[str, list[str]]], finish: str, cut: int
) -> None:
    whole_calls: list[Json] = [
        {"id": f"call_{index}", "function": {"name": name, "arguments": "".join(parts)}}
        for index, (name, parts) in enumerate(calls)
    ]
    blocking = answer({"content": "".join(contents), "tool_calls": whole_calls}, finish)
    chunks = [chunk(content=content) for content in contents]
    for index, (name, parts) in enumerate(calls):
        chunks.append(chunk(tool_calls=[piece(index, "", f"call_{index}", name[:cut])]))
        if name[cut:] != name[:cut]:  # such a name cannot be told from one that is repeated
            chunks.append(chunk(tool_calls=[piece(index, "", None, name[cut:])]))
        else:
            chunks[-1] = chunk(tool_calls=[piece(index, "", f"call_{index}", name)])
        chunks += [chunk(tool_calls=[piece(index, part)]) for part in parts]
    stream = sse(*chunks, chunk(finish), {"choices": [], "usage": USAGE})

    async def compare() -> None:
        streamed = await reply_of(provider_at(Upstream(text(stream))), request(stream=True))
        assert streamed == await reply_of(provider_at(Upstream(json_answer(blocking))))

    anyio.run(compare)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("something_new", FinishReason.STOP),
        (None, FinishReason.STOP),
    ],
)
async def test_finish_reasons_are_mapped(reason: str | None, expected: FinishReason) -> None:
    [delta] = await deltas_of(provider_at(Upstream(json_answer(answer({"content": "Hi"}, reason)))))
    assert delta.finish_reason is expected
    streamed = await deltas_of(provider_at(Upstream(text(sse(chunk(content="Hi"), chunk(reason))))), request(stream=True))
    assert streamed[-1].finish_reason is expected


async def test_stop_after_tool_calls_becomes_tool_calls() -> None:
    message: Payload = {"content": None, "tool_calls": [TOOL_CALL]}
    assert (await reply_of(provider_at(Upstream(json_answer(answer(message, "stop")))))).finish_reason is FinishReason.TOOL_CALLS
    stream = sse(chunk(tool_calls=[piece(0, "{}", "a", "weather")]), chunk("stop"))
    streamed = await reply_of(provider_at(Upstream(text(stream))), request(stream=True))
    assert streamed.finish_reason is FinishReason.TOOL_CALLS


CALLS_IN_PIECES: list[tuple[list[Payload], list[ToolCall]]] = [
    (  # two calls have the same index
        [piece(0, "{}", "a", "one"), piece(0, '{"x":', "b", "two"), piece(0, "1}")],
        [ToolCall("a", "one", "{}"), ToolCall("b", "two", '{"x":1}')],
    ),
    ([piece(0, "{", "a", "one"), piece(0, "}", "a", "one")], [ToolCall("a", "one", "{}")]),  # every chunk repeats the id
    (  # the ids are in pieces
        [
            *(piece(0, "", "call_"), piece(0, "", "7", "one"), piece(0, "{", "call_7"), piece(0, "}")),
            *(piece(1, "", "call_"), piece(1, "{}", "8", "two")),
        ],
        [ToolCall("call_7", "one", "{}"), ToolCall("call_8", "two", "{}")],
    ),
    (  # a new id follows a call without arguments
        [piece(0, "", "a", "now"), piece(0, "", "b"), piece(0, "", None, "sum"), piece(0, "{}")],
        [ToolCall("a", "now", ""), ToolCall("b", "sum", "{}")],
    ),
    (  # an id with arguments does not extend that of the call before
        [piece(0, "", "a", "now"), piece(0, '{"x"', "b"), piece(0, ":1}", "b", "sum")],
        [ToolCall("a", "now", ""), ToolCall("b", "sum", '{"x":1}')],
    ),
]


@pytest.mark.parametrize(("pieces", "calls"), CALLS_IN_PIECES)
async def test_pieces_with_an_id_belong_to_the_call_of_that_id(pieces: list[Payload], calls: list[ToolCall]) -> None:
    stream = sse(*(chunk(tool_calls=[each]) for each in pieces), chunk("tool_calls"))
    reply = await reply_of(provider_at(Upstream(text(stream))), request(stream=True))
    assert list(reply.message.tool_calls) == calls


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "", "a", "get_"), piece(0, "", None, "wea"), piece(0, "", None, "ther"), piece(0, "{"), piece(0, "}")],
        [piece(0, "", "a", "get_"), piece(0, "", "a", "weather"), piece(0, "{}", "a", "get_weather")],  # and the whole at last
        [piece(0, "", "a", "get_weather"), piece(0, "{", "a", "get_weather"), piece(0, "}", "a", "get_weather")],
        [piece(0, "", "a"), piece(0, "", None, "get_weather"), piece(0, "{}")],
        [piece(0, "", "a", "get_"), piece(0, "{}", None, "weather")],
    ],
)
async def test_a_name_in_pieces_is_joined_and_a_repeated_name_is_not(pieces: list[Payload]) -> None:
    stream = sse(*[chunk(tool_calls=[each]) for each in pieces], chunk("tool_calls"))
    deltas = await deltas_of(provider_at(Upstream(text(stream))), request(stream=True))
    assert collect_deltas(deltas).message.tool_calls == (ToolCall("a", "get_weather", "{}"),)
    # A client reads the name in one piece, and knows whose call it is.
    assert [call.name for delta in deltas for call in delta.tool_calls if call.name] == ["get_weather"]


async def test_names_in_pieces_belong_to_their_calls() -> None:
    stream = sse(
        chunk(tool_calls=[piece(0, "", "a", "get_"), piece(1, "", "b", "get_"), piece(2, "", "c", "sto")]),
        chunk(tool_calls=[piece(1, "", None, "time"), piece(0, "", None, "weather")]),
        chunk(tool_calls=[piece(2, "", None, "p")]),
        chunk(tool_calls=[piece(1, "{}")]),
        chunk("tool_calls"),
    )
    builder = ReplyBuilder(lambda name: True)
    deltas = await deltas_of(provider_at(Upstream(text(stream))), request(stream=True))
    shown = [(call.index, call.name) for delta in deltas for call in builder.add(delta) if call.name]
    assert builder.reply.message.tool_calls == (
        ToolCall("a", "get_weather", ""),
        ToolCall("b", "get_time", "{}"),
        ToolCall("c", "stop", ""),
    )
    assert shown == [(0, "get_weather"), (1, "get_time"), (2, "stop")]  # numbered as in the answer


async def test_arguments_never_precede_their_call() -> None:
    stream = sse(
        chunk(tool_calls=[piece(0, "", "a")]),
        chunk(tool_calls=[piece(1, '{"x"', "b", "sum")]),
        chunk(tool_calls=[piece(0, "{}", None, "now")]),
        chunk(tool_calls=[piece(1, ":1}")]),
        chunk("tool_calls"),
    )
    deltas = await deltas_of(provider_at(Upstream(text(stream))), request(stream=True))
    assert [(call.index, call.name, call.arguments) for delta in deltas for call in delta.tool_calls] == [
        (0, "now", "{}"),
        (1, "sum", '{"x"'),
        (1, None, ":1}"),
    ]


async def test_calls_without_id_or_index_get_one() -> None:
    call: Payload = {"function": {"name": "weather", "arguments": {"city": "Köln"}}}
    reply = await reply_of(provider_at(Upstream(json_answer(answer({"tool_calls": [call, call]})))))
    first, second = reply.message.tool_calls
    assert first.id != second.id
    assert first.arguments == second.arguments == '{"city": "Köln"}'


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({"usage": {**USAGE, "cost": 0.00012}}, Decimal("0.00012")),
        ({"usage": {**USAGE, "cost": "0.5"}}, Decimal("0.5")),
        ({"usage": {**USAGE, "cost": {"usd": "0.25", "eur": "0.2"}}}, Decimal("0.25")),
        ({"usage": {**USAGE, "cost": 0}}, Decimal(0)),
        ({"cost": 1}, Decimal(1)),
        ({"usage": {**USAGE, "cost_in_usd_ticks": 37756000}}, Decimal("0.0037756")),
        ({"usage": {**USAGE, "cost_in_usd_ticks": "1e9999999"}}, None),
        ({"usage": {**USAGE, "cost": -1}}, None),
        ({"usage": {**USAGE, "cost": "NaN"}}, None),
        ({"usage": {**USAGE, "cost": True}}, None),
        ({"usage": {**USAGE, "cost": []}}, None),
        ({}, None),
    ],
)
async def test_the_cost_of_the_provider_is_read(fields: Payload, cost: Decimal | None) -> None:
    assert (await reply_of(provider_at(Upstream(json_answer({**answer({"content": "Hi"}), **fields}))))).cost_usd == cost


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({}, TokenUsage()),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, TokenUsage()),
        ({"total_tokens": 18}, TokenUsage()),
        ({"prompt_tokens": 11, "total_tokens": 18}, TokenUsage(11, 7)),
        ({"prompt_tokens": 11}, TokenUsage(11)),
        ({"completion_tokens": 7, "total_tokens": 18}, TokenUsage(0, 7)),
        ({"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 18}, TokenUsage(11, 7)),
        ({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 3}, TokenUsage(11, 7)),
        ({"prompt_tokens": 11.0, "completion_tokens": 7.0}, TokenUsage(11, 7)),
        ({"prompt_tokens": 11, "completion_tokens": -7}, TokenUsage(11)),
        ({"prompt_tokens": 11, "completion_tokens": 10**12 + 1}, TokenUsage(11)),
        ({"prompt_tokens": 11, "completion_tokens": 7.5}, TokenUsage(11)),
        ({"prompt_tokens": 11, "completion_tokens": float("nan")}, TokenUsage(11)),
        ({"prompt_tokens": 11, "completion_tokens": float("inf")}, TokenUsage(11)),
        ({"prompt_tokens": True, "completion_tokens": "many"}, TokenUsage()),
        ({"prompt_tokens": [], "completion_tokens": {}, "prompt_tokens_details": {"cached_tokens": -3}}, TokenUsage()),
        ({**USAGE, "prompt_tokens_details": None, "completion_tokens_details": [1]}, TokenUsage(11, 7)),
        ([], None),
        ("lots", None),
        (7, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_invalid_token_count_does_not_fail_the_answer(usage: Json, tokens: TokenUsage | None, stream: bool) -> None:
    body: Payload = {
        "choices": [{"message": {"content": "Hi"}, "delta": {"content": "Hi"}, "finish_reason": "stop"}],
        "usage": usage,
    }
    answer = text(sse(body)) if stream else text(json.dumps(body))
    reply = await reply_of(provider_at(Upstream(answer)), request(stream=stream))
    assert (reply.message.content, reply.usage) == ("Hi", tokens)


async def test_a_count_of_5000_digits_does_not_fail_the_answer() -> None:
    body = b'{"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": %s}}' % (b"9" * 5000)
    reply = await reply_of(provider_at(Upstream(text(body))))
    assert (reply.message.content, reply.usage) == ("Hi", TokenUsage())


async def test_an_answer_without_usage_has_none() -> None:
    assert (await reply_of(provider_at(Upstream(json_answer({"choices": [{"message": {"content": "Hi"}}]}))))).usage is None


HI = (chunk(content="Hi"), chunk("stop"))


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b": nothing but a comment\n\n",
        sse(),
        sse(chunk(content="Hi"), done=False),
        sse(chunk(content="Hi"), done=False) + b'data: {"choices": [{"del',
        sse(chunk(content="Hi"), done=False) + b"data: [DO",
    ],
)
async def test_an_incomplete_stream_is_a_failure(stream: bytes) -> None:
    with pytest.raises(BackendUnavailable):
        await deltas_of(provider_at(Upstream(text(stream))), request(stream=True))


@pytest.mark.parametrize("stream", [sse(*HI, done=False), sse(*HI) + b"data: {never\n\n"])
async def test_a_stream_ends_with_its_finish_reason_or_done_and_what_follows_is_ignored(stream: bytes) -> None:
    assert (await reply_of(provider_at(Upstream(text(stream))), request(stream=True))).message.content == "Hi"


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_whole_answer_in_place_of_a_stream_is_read(pieces: int) -> None:
    body = (
        b"\n "
        + json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": USAGE}, indent=1).encode()
    )
    size = -(-len(body) // pieces)
    answer = Answer(chunks=[body[at : at + size] for at in range(0, len(body), size)])
    reply = await reply_of(provider_at(Upstream(answer)), request(stream=True))
    assert (reply.message.content, reply.usage) == ("Hi", TokenUsage(11, 7))


async def test_an_error_in_place_of_a_stream_has_its_failure() -> None:
    with pytest.raises(BackendRateLimited, match="slow down"):
        await deltas_of(
            provider_at(Upstream(json_answer({"error": {"code": 429, "message": "slow down"}}))), request(stream=True)
        )


UNVERIFIED_ORGANIZATION: Payload = {
    "error": {
        "message": "Your organization must be verified to stream this model. Please go to: https://x.test and verify.",
        "type": "invalid_request_error",
        "param": "stream",
        "code": "unsupported_value",
    }
}


async def test_a_model_that_cannot_stream_gets_a_blocking_request() -> None:
    upstream = Upstream(json_answer(UNVERIFIED_ORGANIZATION, 400), json_answer(BLOCKING))
    assert await reply_of(provider_at(upstream), request(stream=True)) == await reply_of(
        provider_at(Upstream(json_answer(BLOCKING)))
    )
    streamed, blocking = (chat_request.body for chat_request in upstream.requests)
    assert (streamed["stream"], "stream" in blocking, "stream_options" in blocking) == (True, False, False)


async def test_a_request_refused_both_ways_is_a_bad_request() -> None:
    upstream = Upstream(json_answer(UNVERIFIED_ORGANIZATION, 400))
    with pytest.raises(BackendCannotStream):
        await deltas_of(provider_at(upstream), request(stream=True))
    assert len(upstream.requests) == 2


async def test_a_stream_that_began_is_not_requested_as_a_whole() -> None:
    error: Payload = {"error": {**cast(Payload, UNVERIFIED_ORGANIZATION["error"]), "code": 400}}
    upstream, one_try = Upstream(text(sse(chunk(content="Hi"), error)), json_answer(BLOCKING)), context()
    with pytest.raises(BackendCannotStream):
        async with aclosing(provider_at(upstream).chat(request(stream=True), one_try)) as deltas:
            async for delta in deltas:
                one_try.attempt.record_chunk(delta.characters, delta.usage)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ({"type": "invalid_request_error", "code": "tool_use_failed", "status_code": 400}, BackendBadRequest),  # Groq
        ({"type": "invalid_request_error", "code": "json_validate_failed"}, BackendBadRequest),
        ({"type": "invalid_request_error", "code": "context_length_exceeded"}, BackendContextLength),
        ({"type": "BadRequestError", "code": "400"}, BackendBadRequest),  # vLLM
        ({"type": "tokens", "code": "rate_limit_exceeded"}, BackendRateLimited),
        ({"type": "insufficient_quota", "code": "insufficient_quota"}, BackendAuthError),
        ({"type": "invalid_request_error", "code": "invalid_api_key"}, BackendAuthError),
        ({"type": "server_error", "code": None}, BackendUnavailable),
        ({"type": "invalid_request_error", "code": 500}, BackendUnavailable),
        ({"type": ["invalid_request_error"], "code": {}}, BackendUnavailable),
    ],
)
async def test_the_code_or_type_of_an_error_inside_an_answer_decides(
    error: Payload, failure: type[AttemptFailed], stream: bool
) -> None:
    payload: Payload = {"error": {"message": "Failed to call a function.", **error}}
    upstream = Upstream(text(sse(payload))) if stream else Upstream(json_answer(payload))
    with pytest.raises(AttemptFailed) as raised:
        await deltas_of(provider_at(upstream), request(stream=stream))
    assert type(raised.value) is failure


async def test_an_error_inside_a_stream_has_its_failure() -> None:
    error: Payload = {"error": {"code": 429, "message": "slow down, sk-abc12345678"}}
    with pytest.raises(BackendRateLimited, match=r"^slow down, \[…\]$"):
        await deltas_of(provider_at(Upstream(text(sse(chunk(content="Hi"), error)))), request(stream=True))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"null",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": {"message": 1}}',
        b'{"choices": [{"message": {"content": 7}}]}',
        b'{"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}',
        b'{"choices": ' + b"[" * 100_000,
        b'{"error": {"message": "oops"}}',
        b"\xff\xfe",
    ],
)
async def test_a_malformed_answer_is_a_failure(body: bytes) -> None:
    with pytest.raises(BackendUnavailable):
        await deltas_of(provider_at(Upstream(text(body))))
    with pytest.raises(AttemptFailed):
        await deltas_of(provider_at(Upstream(text(b"data: " + body + b"\n\n"))), request(stream=True))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list("abc")), inner, max_size=3),
    max_leaves=8,
)
payload_like = st.fixed_dictionaries(
    {},
    optional={
        "choices": json_values
        | st.lists(
            st.fixed_dictionaries({}, optional={"message": json_values, "delta": json_values, "finish_reason": json_values}),
            max_size=2,
        ),
        "usage": json_values,
        "error": json_values,
        "data": json_values,
    },
)


@given(payload_like)
def test_any_payload_gives_an_answer_or_a_failure(payload: Payload) -> None:
    async def collect_or_fail() -> None:
        body = json.dumps(payload)
        for stream, sent in ((False, body), (True, f"data: {body}\n\ndata: [DONE]\n\n")):
            try:
                await deltas_of(provider_at(Upstream(text(sent))), request(stream=stream))
                await provider_at(Upstream(text(body))).embed(EmbeddingRequest("m", ("a",)), context())
            except AttemptFailed:
                pass

    anyio.run(collect_or_fail)


async def test_half_a_surrogate_pair_is_replaced() -> None:
    body = await sent_body(request(Message(Role.USER, "a\ud800b")))
    messages = cast(list[dict[str, str]], body["messages"])
    assert messages[0]["content"] == "a?b"


HALVES = r"ok \ud800 x \ud83d\ude00"
WHOLE = "ok \ufffd x 😀"


async def test_half_an_escaped_surrogate_pair_does_not_fail_the_answer() -> None:
    call = '{"id": "c", "function": {"name": "weather", "arguments": "HALVES"}}'
    body = '{"choices": [{"message": {"content": "HALVES", "refusal": "HALVES", "tool_calls": [CALL]}, "finish_reason": "stop"}]}'
    upstream = Upstream(text(body.replace("CALL", call).replace("HALVES", HALVES)))
    reply = await reply_of(provider_at(upstream))
    assert (reply.message.content, reply.refusal, reply.message.tool_calls[0].arguments) == (WHOLE, WHOLE, WHOLE)
    assert len(upstream.requests) == 1


@given(st.lists(st.sampled_from(["\ud83d", "\ude00", "\ud800", "a", "ö", "😀", ""]), min_size=1, max_size=8))
def test_halves_of_surrogate_pairs_are_joined_or_replaced(pieces: list[str]) -> None:
    def delta(words: str) -> Payload:
        return chunk(content=words, refusal=words, tool_calls=[piece(0, words, "c", "weather")])

    stream = "".join(f"data: {json.dumps(delta(words))}\n\n" for words in pieces) + "data: [DONE]\n\n"
    reply = anyio.run(reply_of, provider_at(Upstream(text(stream))), request(stream=True))
    expected = "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert (reply.message.content, reply.refusal, reply.message.tool_calls[0].arguments) == (expected, expected, expected)


@pytest.mark.parametrize("provider", ["openai", "xai"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_is_separate_from_the_content(provider: str, stream: bool) -> None:
    blocking = json_answer(answer({"content": None, "refusal": "I cannot."}))
    streamed = text(sse(chunk(role="assistant", content="", refusal=None), chunk(refusal="I can"), chunk("stop", refusal="not.")))
    reply = await reply_of(provider_at(Upstream(streamed if stream else blocking), provider), request(stream=stream))
    assert (reply.message.content, reply.refusal, reply.finish_reason) == ("", "I cannot.", FinishReason.STOP)


async def test_strict_tools_and_names_of_messages_are_sent() -> None:
    tools = (replace(WEATHER, strict=True), replace(WEATHER, name="other", strict=False), replace(WEATHER, name="third"))
    body = await sent_body(replace(request(replace(QUESTION, name="anna")), tools=tools))
    sent = cast(list[dict[str, dict[str, Json]]], body["tools"])
    assert [tool["function"].get("strict", "absent") for tool in sent] == [True, False, "absent"]
    assert body["messages"] == [{"role": "user", "content": QUESTION.content, "name": "anna"}]


def vector(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


async def embed_with(data: Json, usage: Payload | None = None) -> EmbeddingReply:
    provider = provider_at(Upstream(json_answer({"data": data, "usage": usage})))
    return await provider.embed(EmbeddingRequest("embedder", ("a", "b")), context())


@pytest.mark.parametrize("form", ["numbers", "base64"])
async def test_vectors_are_in_the_order_of_the_texts(form: str) -> None:
    second: Json = [0.5, -1.0] if form == "numbers" else vector(0.5, -1.0)
    reply = await embed_with([{"index": 1, "embedding": second}, {"index": 0, "embedding": [1, 2]}], {"prompt_tokens": 4})
    assert (reply.count, reply.dimensions, reply.usage) == (2, 2, TokenUsage(4))
    assert reply.rows() == [[1.0, 2.0], [0.5, -1.0]]


async def test_pictures_are_sent_unchanged() -> None:
    far, near = Image("https://example.com/cat.png", "low"), Image("data:image/png;base64,iVBORw0KGgo=")
    body = await sent_body(request(Message(Role.USER, "Which?", parts=(far, "Which?", near))))
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": far.url, "detail": "low"}},
                {"type": "text", "text": "Which?"},
                {"type": "image_url", "image_url": {"url": near.url}},
            ],
        }
    ]


async def test_an_embedding_request_has_model_and_texts() -> None:
    upstream = Upstream(json_answer({"data": [{"embedding": [1.0]}]}))
    await provider_at(upstream, "ollama").embed(EmbeddingRequest("nomic", ("a",)), context())
    assert upstream.body == {"model": "nomic", "input": ["a"]}
    assert upstream.requests[0].url.endswith("/v1/embeddings")


@pytest.mark.parametrize(("model", "dimensions"), [("text-embedding-3-large", 1024), ("text-embedding-ada-002", None)])
async def test_dimensions_are_sent_to_openai_models_with_several_dimensions(model: str, dimensions: int | None) -> None:
    upstream = Upstream(json_answer({"data": [{"embedding": [1.0] * 1024}]}))
    await provider_at(upstream).embed(EmbeddingRequest(model, ("a",), 1024), context())
    assert upstream.body.get("dimensions") == dimensions


@pytest.mark.parametrize(
    "data",
    [
        None,
        [{"embedding": [1.0, 2.0]}, {"embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}],
        [{"index": 1, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}],
        [{"embedding": []}],
        [{"embedding": "!!!"}],
        [{"embedding": "AAA="}],
        [{"embedding": "äöü"}],
        [{"embedding": ["x"]}],
        [{"embedding": None}],
        ["x"],
    ],
)
async def test_malformed_vectors_are_a_failure(data: Json) -> None:
    with pytest.raises(BackendUnavailable):
        await embed_with(data)


async def test_an_answer_without_text_is_an_empty_reply() -> None:
    reply = await reply_of(provider_at(Upstream(json_answer(answer({"content": None})))))
    assert reply == ChatReply(Message(Role.ASSISTANT, ""), FinishReason.STOP, TokenUsage(11, 7))
    assert collect_deltas([]).message.content == ""


def test_the_work_for_many_tool_calls_is_linear() -> None:
    reader = OpenAiReader()
    calls = [{"index": 0, "id": f"call_{number}", "function": {"name": "weather", "arguments": "{}"}} for number in range(30_000)]
    events = [ServerSentEvent("message", json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]})) for call in calls]
    start_time = time.process_time()
    for event in events:
        reader.read(event)
    assert time.process_time() - start_time < 3  # quadratic work takes twenty seconds
