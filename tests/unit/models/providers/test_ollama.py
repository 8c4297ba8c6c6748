"""Ollama's own chat format: the requests, and the answers whole and as a stream."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import FinishReason, Image, Json, Message, Role, TokenUsage, ToolCall
from spass.models.errors import (
    AttemptFailed,
    BackendBadRequest,
    BackendContextLength,
    BackendRateLimited,
    BackendUnavailable,
    BackendUnsupported,
)
from spass.models.types import ChatDelta, ChatReply, ChatRequest, EmbeddingRequest
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

DONE: Payload = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
COUNTS: Payload = {"prompt_eval_count": 26, "eval_count": 7, "total_duration": 182242375}


def line(content: str = "", **fields: Json) -> Payload:
    """Return a line that is not the last one. ``fields`` are fields of its message."""
    return {"model": "m", "created_at": "2025", "message": {"role": "assistant", "content": content, **fields}, "done": False}


def call(name: str, arguments: Json) -> Payload:
    return {"function": {"name": name, "arguments": arguments}}


def ndjson(*lines: Payload) -> bytes:
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines).encode()


STREAM = ndjson(
    line(thinking="Hmm."),
    line("In Kö"),
    line("ln 😀"),
    line(tool_calls=[call("weather", {"city": "Köln"}), call("weather", {"city": "Bonn"})]),
    line(tool_calls=[call("clock", {})]),
    {**DONE, **COUNTS},
)
BLOCKING: Payload = {
    **DONE,
    **COUNTS,
    "message": {
        "role": "assistant",
        "content": "In Köln 😀",
        "thinking": "Hmm.",
        "tool_calls": [call("weather", {"city": "Köln"}), call("weather", {"city": "Bonn"}), call("clock", {})],
    },
}
CALLS = [("weather", '{"city": "Köln"}'), ("weather", '{"city": "Bonn"}'), ("clock", "{}")]


async def streamed(body: bytes | Sequence[bytes]) -> list[ChatDelta]:
    answer = Answer(chunks=[body] if isinstance(body, bytes) else body)
    return await deltas_of(provider_at(Upstream(answer), "ollama"), request(stream=True))


async def sent(chat_request: ChatRequest) -> Payload:
    return await body_of(chat_request, DONE, "ollama")


async def sent_messages(*messages: Message) -> Json:
    return (await sent(request(*messages)))["messages"]


def named_calls(reply: ChatReply) -> list[tuple[str, str]]:
    return [(one.name, one.arguments) for one in reply.message.tool_calls]


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        (None, "http://127.0.0.1:11434"),
        ("http://gpu:11434", "http://gpu:11434"),
        ("http://gpu:11434/", "http://gpu:11434"),
        ("http://gpu:11434/v1", "http://gpu:11434"),
        ("http://gpu:11434/v1/", "http://gpu:11434"),
        ("https://example.com/ollama/v1", "https://example.com/ollama"),
    ],
)
async def test_chat_and_embeddings_have_their_addresses(base_url: str | None, root: str) -> None:
    upstream = Upstream(json_answer(DONE), json_answer({"data": [{"embedding": [1.0]}]}))
    provider = provider_at(upstream, "ollama", base_url=base_url)
    await reply_of(provider)
    await provider.embed(EmbeddingRequest("nomic", ("a",)), context())
    assert [one.url for one in upstream.requests] == [f"{root}/api/chat", f"{root}/v1/embeddings"]


async def test_a_key_is_sent_only_if_there_is_one() -> None:
    upstream = Upstream(json_answer(DONE))
    await reply_of(provider_at(upstream, "ollama"))
    await reply_of(provider_at(upstream, "ollama", key=None))
    assert [one.headers.get("authorization") for one in upstream.requests] == [f"Bearer {KEY}", None]


async def test_every_field_of_a_request_is_in_the_body() -> None:
    chat_request = ChatRequest(
        "llama4:scout",
        (Message(Role.SYSTEM, "Be brief."), QUESTION),
        tools=(replace(WEATHER, strict=True),),
        temperature=0.0,
        top_p=0.5,
        max_tokens=9,
        stop=("END", "\n"),
        seed=0,
        response_format={"type": "json_object"},
        extra={"presence_penalty": 0, "frequency_penalty": 0.5, "reasoning_effort": "low", "user": "anna"},
        context_window=131072,
    )
    assert await sent(chat_request) == {
        "model": "llama4:scout",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": QUESTION.content},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather in a city.",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                },
            }
        ],
        "format": "json",
        "options": {
            "num_ctx": 131072,
            "num_predict": 9,
            "temperature": 0.0,
            "top_p": 0.5,
            "seed": 0,
            "stop": ["END", "\n"],
            "presence_penalty": 0,
            "frequency_penalty": 0.5,
        },
        "think": "low",
        "truncate": False,
        "stream": False,
    }


async def test_a_request_without_fields_leaves_ollamas_defaults() -> None:
    body = {"model": "model-1", "messages": [{"role": "user", "content": QUESTION.content}]}
    assert await sent(request()) == {**body, "stream": False}
    upstream = Upstream(text(STREAM))
    await deltas_of(provider_at(upstream, "ollama"), request(stream=True))
    assert upstream.body == {**body, "stream": True}


@pytest.mark.parametrize(("effort", "think"), [("none", False), ("low", "low"), ("medium", "medium"), ("high", "high")])
async def test_the_effort_is_sent_as_think(effort: str, think: Json) -> None:
    assert (await sent(replace(request(), extra={"reasoning_effort": effort})))["think"] == think


SCHEMA: Payload = {"type": "object", "properties": {"age": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("response_format", "sent_format"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json"),
        ({"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "person"}}, "json"),
    ],
)
async def test_a_response_format_is_sent_as_a_format(response_format: Payload, sent_format: Json) -> None:
    assert (await sent(replace(request(), response_format=response_format))).get("format") == sent_format


async def test_calls_are_objects_and_results_name_their_tool() -> None:
    calls = (ToolCall("a", "weather", '{"city": "Köln"}'), ToolCall("b", "clock", "{}"))
    results = (Message(Role.TOOL, "Noon", tool_call_id="b"), Message(Role.TOOL, "Rain", tool_call_id="a"))
    assert await sent_messages(QUESTION, Message(Role.ASSISTANT, "I look.", calls), *results) == [
        {"role": "user", "content": QUESTION.content},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [call("weather", {"city": "Köln"}), call("clock", {})],
        },
        {"role": "tool", "content": "Noon", "tool_name": "clock"},
        {"role": "tool", "content": "Rain", "tool_name": "weather"},
    ]


async def test_results_of_calls_with_the_same_id_have_the_calls_order() -> None:
    def turn(*names: str) -> list[Message]:
        asked = Message(Role.ASSISTANT, "", tuple(ToolCall("call_0", name, "{}") for name in names))
        return [asked, *(Message(Role.TOOL, "ok", tool_call_id="call_0") for _ in names)]

    messages = await sent_messages(QUESTION, *turn("weather", "clock"), QUESTION, *turn("search"))
    assert isinstance(messages, list)
    assert [one["tool_name"] for one in messages if one["role"] == "tool"] == ["weather", "clock", "search"]


async def test_a_result_without_its_call_is_sent_without_a_name() -> None:
    assert await sent_messages(Message(Role.TOOL, "Rain", tool_call_id="gone")) == [{"role": "tool", "content": "Rain"}]


@pytest.mark.parametrize("arguments", ["", " ", '{"city":', "[1]", '"Köln"', "NaN", '{"a": NaN}', "\ud800"])
async def test_arguments_that_are_not_an_object_are_sent_in_one(arguments: str) -> None:
    messages: Any = await sent_messages(QUESTION, Message(Role.ASSISTANT, "", (replace(CALL, arguments=arguments),)))
    sent_arguments = messages[1]["tool_calls"][0]["function"]["arguments"]
    assert sent_arguments == ({"not_an_object": arguments.replace("\ud800", "?")} if arguments.strip() else {})


async def test_pictures_are_sent_beside_the_text() -> None:
    parts = ("Which?", Image("data:image/png;base64,QUJD"), "Or?", Image("data:image/gif;base64,REVG", "low"))
    assert await sent_messages(Message(Role.USER, "Which?\nOr?", parts=parts)) == [
        {"role": "user", "content": "Which?\nOr?", "images": ["QUJD", "REVG"]}
    ]


async def test_the_address_of_a_picture_is_rejected() -> None:
    upstream = Upstream(json_answer(DONE))
    picture = Message(Role.USER, "", parts=(Image("https://example.com/cat.png"),))
    with pytest.raises(BackendUnsupported, match="Ollama does not fetch pictures"):
        await reply_of(provider_at(upstream, "ollama"), request(picture))
    assert upstream.requests == []


async def test_a_collected_stream_equals_the_blocking_reply() -> None:
    blocking = await reply_of(provider_at(Upstream(json_answer(BLOCKING)), "ollama"))
    reply = collect_deltas(await streamed(STREAM))
    for one in (blocking, reply):
        assert (one.message.content, named_calls(one)) == ("In Köln 😀", CALLS)
        assert (one.finish_reason, one.usage) == (FinishReason.TOOL_CALLS, TokenUsage(26, 7))


words = st.text(max_size=8)
calls_of_a_line = st.lists(
    st.tuples(st.text("ab_", min_size=1, max_size=4), st.dictionaries(words, words, max_size=2)), max_size=3
)


@given(st.lists(st.tuples(words, words, calls_of_a_line), max_size=4), st.sampled_from(["stop", "length"]), st.integers(1, 40))
def test_any_collected_stream_equals_the_blocking_reply(
    lines: list[tuple[str, str, list[tuple[str, dict[str, str]]]]], reason: str, size: int
) -> None:
    parts = [line(content, thinking=thought, tool_calls=[call(*one) for one in calls]) for content, thought, calls in lines]
    last: Payload = {"done": True, "done_reason": reason, **COUNTS}
    whole: Payload = {
        **last,
        "message": {
            "content": "".join(content for content, _, _ in lines),
            "thinking": "".join(thought for _, thought, _ in lines),
            "tool_calls": [call(*one) for _, _, calls in lines for one in calls],
        },
    }
    body = ndjson(*parts, last)

    async def read(answer: Answer, *, stream: bool) -> tuple[Message, FinishReason, TokenUsage | None, int]:
        deltas = await deltas_of(provider_at(Upstream(answer), "ollama"), request(stream=stream))
        reply = collect_deltas(deltas)
        message = replace(reply.message, tool_calls=tuple(replace(one, id="") for one in reply.message.tool_calls))
        return message, reply.finish_reason, reply.usage, sum(delta.reasoning_characters for delta in deltas)

    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    assert anyio.run(partial(read, Answer(chunks=chunks), stream=True)) == anyio.run(
        partial(read, json_answer(whole), stream=False)
    )


any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["message", "content", "tool_calls", "function", "name", "arguments", "done", "error", "eval_count"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.lists(any_json, max_size=4), st.booleans())
def test_any_lines_give_deltas_or_a_failure(lines: list[Json], stream: bool) -> None:
    body = "".join(json.dumps(one) + "\n" for one in lines)
    with suppress(AttemptFailed):
        deltas = anyio.run(deltas_of, provider_at(Upstream(text(body)), "ollama"), request(stream=stream))
        assert deltas[-1].finish_reason is not None


async def test_calls_get_ids_in_their_order() -> None:
    ids = [one.id for one in collect_deltas(await streamed(STREAM)).message.tool_calls]
    assert ids == sorted(set(ids))
    others = [one.id for one in collect_deltas(await streamed(STREAM)).message.tool_calls]
    assert not set(ids) & set(others)


async def test_each_line_is_one_delta() -> None:
    deltas = await streamed(STREAM)
    assert [delta.content for delta in deltas] == ["In Kö", "ln 😀", "", "", ""]
    assert [len(delta.tool_calls) for delta in deltas] == [0, 0, 2, 1, 0]


async def test_reasoning_is_counted_and_does_not_begin_an_answer() -> None:
    deltas = await streamed(STREAM)
    assert [delta.reasoning_characters for delta in deltas] == [4, 0, 0, 0, 0]
    only = await streamed(ndjson(line(thinking="Hm"), line(thinking="m."), {**DONE, **COUNTS}))
    assert [(delta.content, delta.reasoning_characters) for delta in only] == [("", 4)]
    whole = await deltas_of(provider_at(Upstream(json_answer(BLOCKING)), "ollama"))
    assert [delta.reasoning_characters for delta in whole] == [4]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (DONE, FinishReason.STOP),
        ({"done": True}, FinishReason.STOP),
        ({"done": True, "done_reason": "load"}, FinishReason.STOP),
        ({"done": True, "done_reason": None}, FinishReason.STOP),
        ({"done": True, "done_reason": "length"}, FinishReason.LENGTH),
    ],
)
async def test_each_done_reason_has_its_finish_reason(last: Payload, reason: FinishReason) -> None:
    reply = collect_deltas(await streamed(ndjson(line("Hi"), last)))
    assert (reply.message.content, reply.finish_reason, reply.usage) == ("Hi", reason, None)


async def test_a_text_in_the_last_line_is_part_of_the_answer() -> None:
    last: Payload = {**DONE, "message": {"role": "assistant", "content": "!"}}
    assert collect_deltas(await streamed(ndjson(line("Hi"), last))).message.content == "Hi!"


async def test_lines_after_the_last_one_are_not_read() -> None:
    assert collect_deltas(await streamed(ndjson(line("Hi"), DONE, line("Oh")))).message.content == "Hi"


async def test_counts_that_are_wrong_are_unknown() -> None:
    deltas = await streamed(ndjson(line("Hi"), {**DONE, "prompt_eval_count": "many", "eval_count": 5}))
    assert deltas[-1].usage == TokenUsage(0, 5)


async def test_half_characters_of_two_lines_are_joined() -> None:
    body = b'{"message": {"content": "\\ud83d"}}\n{"message": {"content": "\\ude00 \\ud83d"}}\n{"done": true}\n'
    assert collect_deltas(await streamed(body)).message.content == "😀 \ufffd"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({}, "{}"),
        (None, "{}"),
        ('{"city":', '{"city":'),
        ('{"city": "Köln"}', '{"city": "Köln"}'),
        ({"a": [1, None]}, '{"a": [1, null]}'),
    ],
)
async def test_arguments_become_json_text(arguments: Json, written: str) -> None:
    reply = collect_deltas(await streamed(ndjson(line(tool_calls=[call("weather", arguments)]), DONE)))
    assert named_calls(reply) == [("weather", written)]


@pytest.mark.parametrize("lines", [[], [line("Hi")], [line(tool_calls=[call("weather", {})])], [line(thinking="Hm")]])
async def test_a_stream_without_its_last_line_is_an_error(lines: list[Payload]) -> None:
    with pytest.raises(BackendUnavailable, match="broke off before its end"):
        await streamed(ndjson(*lines))


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"message"',
        b"Bad Gateway",
        b"[]",
        b"[1]",
        b"null",
        b"[" * 100_000,
        b'{"message": {"tool_calls": [{}]}}',
        b'{"done": "?"}',
    ],
)
async def test_a_damaged_line_is_an_error_after_the_text_before_it(damaged: bytes) -> None:
    deltas: list[ChatDelta] = []
    provider = provider_at(Upstream(Answer(chunks=[ndjson(line("Hi")) + damaged + b"\n" + ndjson(DONE)])), "ollama")
    with pytest.raises(BackendUnavailable, match="it is not what the protocol says"):
        async for delta in provider.chat(request(stream=True), context()):
            deltas.append(delta)
    assert [delta.content for delta in deltas] == ["Hi"]


@pytest.mark.parametrize("name", [None, ""])
async def test_a_call_without_a_name_is_an_error(name: str | None) -> None:
    with pytest.raises(BackendUnavailable, match="a tool call has no name"):
        await streamed(ndjson(line(tool_calls=[{"function": {"name": name, "arguments": {}}}]), DONE))


async def test_a_blocking_answer_that_is_not_done_is_an_error() -> None:
    with pytest.raises(BackendUnavailable, match="it has no end"):
        await reply_of(provider_at(Upstream(json_answer(line("Hi"))), "ollama"))


async def test_an_endless_line_is_an_error() -> None:
    with pytest.raises(BackendUnavailable, match="an event does not end"):
        await streamed([b'{"message": {"content": "'] + [b"x" * 1024 * 1024] * 9)


RUNNER_ERROR = json.dumps(
    {
        "error": {
            "code": 400,
            "message": "request (8889 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 8889,
            "n_ctx": 4096,
        }
    }
)
ERRORS: Sequence[tuple[Json, type[AttemptFailed], str]] = [
    ("an error was encountered while running the model", BackendUnavailable, "an error was encountered while running the model"),
    ("prompt too long; exceeded max context length by 12 tokens", BackendContextLength, "prompt too long"),
    ("the input length exceeds the context length", BackendContextLength, "the input length exceeds"),
    (RUNNER_ERROR, BackendContextLength, "request (8889 tokens) exceeds the available context size"),
    ('{"error": not JSON', BackendUnavailable, '{"error": not JSON'),
    ({"message": "slow down", "code": 429}, BackendRateLimited, "slow down"),
]


@pytest.mark.parametrize(("error", "kind", "message"), ERRORS)
@pytest.mark.parametrize("before", [[], [line("Hi")], [line(thinking="Hm")]])
async def test_an_error_line_is_an_error(error: Json, kind: type[AttemptFailed], message: str, before: list[Payload]) -> None:
    with pytest.raises(AttemptFailed) as raised:
        await streamed(ndjson(*before, {"error": error}))
    assert type(raised.value) is kind
    assert raised.value.message.startswith(message)


@pytest.mark.parametrize(
    ("error", "kind"), [(error, kind if kind is BackendContextLength else BackendBadRequest) for error, kind, _ in ERRORS[:-1]]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_status_has_its_failure(error: Json, kind: type[AttemptFailed], stream: bool) -> None:
    with pytest.raises(BackendBadRequest) as raised:
        await deltas_of(provider_at(Upstream(json_answer({"error": error}, 400)), "ollama"), request(stream=stream))
    assert type(raised.value) is kind


async def test_a_caller_who_quotes_an_overflow_does_not_cause_one() -> None:
    with pytest.raises(BackendUnavailable):
        await streamed(ndjson({"error": "invalid message: 'prompt too long; exceeded max context length'"}))
