"""Amazon Bedrock: Converse and ConverseStream."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast
from urllib.parse import quote

import anyio
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import FinishReason, Image, Json, Message, Role, TokenUsage, ToolCall, ToolSpec
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendContextLength,
    BackendForbidden,
    BackendRateLimited,
    BackendTimeout,
    BackendUnavailable,
    BackendUnsupported,
)
from spass.models.provider_registry import make_provider
from spass.models.providers.bedrock import Bedrock
from spass.models.router import Router
from spass.models.types import ChatDelta, ChatRequest, NamedTool, Provider, ToolChoice
from spass.tenancy.config import LlmConfig
from tests.unit.aws.eventstreams import event, exception, frame
from tests.unit.collected_replies import collect_deltas
from tests.unit.models.scripted_upstream import (
    CALL,
    KEY,
    QUESTION,
    WEATHER,
    Answer,
    Payload,
    Upstream,
    backend,
    body_of,
    context,
    deltas_of,
    json_answer,
    reply_of,
    request,
    text,
)

pytestmark = pytest.mark.anyio

CLAUDE = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
PNG = "iVBORw0KGgo="


def bedrock(upstream: Upstream, key: str | None = None, base_url: str | None = None) -> Provider:
    return Bedrock(backend("bedrock", base_url=base_url), key, transport=upstream.transport)


def answer(*blocks: Payload, stop: str = "end_turn") -> Payload:
    usage: Payload = {
        "inputTokens": 10,
        "cacheWriteInputTokens": 3,
        "cacheReadInputTokens": 100,
        "outputTokens": 5,
        "totalTokens": 118,
    }
    message: Payload = {"role": "assistant", "content": blocks}
    return {"output": {"message": message}, "stopReason": stop, "usage": usage, "metrics": {"latencyMs": 7}}


def text_block(words: str) -> Payload:
    return {"text": words}


async def sent_body(chat_request: ChatRequest) -> Payload:
    return await body_of(chat_request, answer(text_block("Hi")), "bedrock")


USE: Payload = {"toolUse": {"toolUseId": "tooluse_1", "name": "weather", "input": {"city": "Köln"}}}
NOW: Payload = {"toolUse": {"toolUseId": "tooluse_2", "name": "now", "input": {}}}
THOUGHT: Payload = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "xyz"}}}


def block_start(block: int, use: Payload) -> bytes:
    return event("contentBlockStart", {"contentBlockIndex": block, "start": use})


def block_delta(block: int, **delta: Json) -> bytes:
    return event("contentBlockDelta", {"contentBlockIndex": block, "delta": delta, "p": "abcd"})


def block_stop(block: int) -> bytes:
    return event("contentBlockStop", {"contentBlockIndex": block})


def end(reason: str) -> bytes:
    return event("messageStop", {"stopReason": reason})


START = event("messageStart", {"role": "assistant"})
METADATA = event("metadata", {"usage": answer()["usage"], "metrics": {"latencyMs": 7}})
STREAM = b"".join(
    [
        START,
        block_delta(0, reasoningContent={"text": "hm"}),
        block_delta(0, reasoningContent={"signature": "xyz"}),
        block_stop(0),
        block_delta(1, text="In Kö"),
        block_delta(1, text="ln 😀"),
        block_stop(1),
        block_start(2, {"toolUse": {"toolUseId": "tooluse_1", "name": "weather"}}),
        block_delta(2, toolUse={"input": ""}),
        block_delta(2, toolUse={"input": '{"city": "Kö'}),
        block_delta(2, toolUse={"input": 'ln"}'}),
        block_stop(2),
        block_start(3, {"toolUse": {"toolUseId": "tooluse_2", "name": "now"}}),
        block_stop(3),
        end("tool_use"),
        METADATA,
    ]
)
BLOCKING = answer(THOUGHT, text_block("In Köln 😀"), USE, NOW, stop="tool_use")


@pytest.mark.parametrize(
    ("model", "encoded_model"),
    [
        (CLAUDE, "eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0"),
        (
            "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.x-v1:0",
            "arn%3Aaws%3Abedrock%3Aeu-central-1%3A123456789012%3Ainference-profile%2Feu.x-v1%3A0",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_model_is_in_the_path_and_no_key_is_required(model: str, encoded_model: str, stream: bool) -> None:
    upstream = Upstream(
        text(START + block_delta(0, text="Hi") + end("end_turn")) if stream else json_answer(answer(text_block("Hi")))
    )
    reply = await reply_of(bedrock(upstream), replace(request(stream=stream), model=model))
    assert reply.message.content == "Hi"
    upstream_request = upstream.requests[0]
    operation = "converse-stream" if stream else "converse"
    assert upstream_request.url == f"https://bedrock-runtime.eu-central-1.amazonaws.com/model/{encoded_model}/{operation}"
    assert upstream_request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-central-1/bedrock/aws4_request" in upstream_request.headers["authorization"]
    assert upstream_request.headers["x-amz-security-token"] == "session"
    assert "model" not in upstream_request.body
    assert "stream" not in upstream_request.body


@pytest.mark.parametrize(
    ("base_url", "region"),
    [
        ("https://bedrock-runtime.us-west-2.amazonaws.com", "us-west-2"),
        ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://vpce-1a-2b.bedrock-runtime.ap-southeast-2.vpce.amazonaws.com", "ap-southeast-2"),
        ("http://127.0.0.1:8080/bedrock", "eu-central-1"),
    ],
)
async def test_the_region_comes_from_the_address_or_the_environment(base_url: str, region: str) -> None:
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    await reply_of(bedrock(upstream, base_url=base_url))
    assert upstream.requests[0].url.startswith(f"{base_url}/model/")
    assert f"/{region}/bedrock/" in upstream.requests[0].headers["authorization"]


async def test_a_key_is_sent_instead_of_a_signature() -> None:
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    await reply_of(bedrock(upstream, key=KEY))
    assert upstream.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "x-amz-date" not in upstream.requests[0].headers


async def test_a_backend_without_a_key_uses_the_mapped_model_name() -> None:
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    served = backend("bedrock", model_names={"claude-sonnet-4.5": CLAUDE})

    def no_key(variable: str) -> str | None:
        raise AssertionError(variable)

    router = Router(LlmConfig(backends=(served,)), [], no_key, provider_of=lambda _, key: bedrock(upstream, key))
    chat_request = replace(request(), model="claude-sonnet-4.5")
    assert [delta.content async for delta in router.chat(chat_request, context())] == ["Hi"]
    assert upstream.requests[0].url.endswith("-v1%3A0/converse")


@dataclass
class Wire:
    """A server on a free loopback port that records the bytes of a request and answers with ``stream``."""

    stream: bytes
    line: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.line, *rest = head.strip().split("\r\n")
        self.headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in rest)}
        self.body = await reader.readexactly(int(self.headers["content-length"]))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(self.stream), 100):
            piece = self.stream[at : at + 100]
            writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()


async def test_the_signature_matches_the_bytes_sent() -> None:
    wire = Wire(STREAM)
    listening = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    provider = make_provider(backend("bedrock", base_url=f"http://127.0.0.1:{port}"), None)
    model = "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.x-v1:0"
    try:
        reply = await reply_of(provider, replace(request(stream=True), model=model))
    finally:
        await provider.aclose()
        listening.close()
        await listening.wait_closed()
    assert reply.message.content == "In Köln 😀"
    method, path, _ = wire.line.split(" ")
    assert path == f"/model/{quote(model, safe='')}/converse-stream"

    signed = AWSRequest(method, f"http://{wire.headers['host']}{path}", {"Content-Type": wire.headers["content-type"]}, wire.body)
    signed.context["timestamp"] = wire.headers["x-amz-date"]
    signed.headers["X-Amz-Date"] = wire.headers["x-amz-date"]
    signed.headers["X-Amz-Security-Token"] = "session"
    theirs = SigV4Auth(Credentials("AKIDEXAMPLE", "secret", "session"), "bedrock", "eu-central-1")
    signature = theirs.signature(theirs.string_to_sign(signed, theirs.canonical_request(signed)), signed)
    assert wire.headers["authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize("missing", ["AWS_REGION", "AWS_ACCESS_KEY_ID"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_missing_region_or_credentials_fail_the_call(
    missing: str, stream: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(missing)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    with pytest.raises(BackendAuthError, match="cannot be signed"):
        await reply_of(bedrock(upstream), request(stream=stream))
    assert upstream.requests == []
    (line,) = capsys.readouterr().out.splitlines()
    reason = {"AWS_REGION": "no region", "AWS_ACCESS_KEY_ID": "no credentials"}[missing]
    assert {"event": "not_signed", "backend": "bedrock", "reason": reason}.items() <= json.loads(line).items()


async def test_every_field_of_a_request_is_in_the_body() -> None:
    strict = ToolSpec("add", " ", {"type": "object"}, strict=True)
    schema: Payload = {"name": "x", "schema": {"type": "object"}, "strict": True}
    chat_request = ChatRequest(
        CLAUDE,
        (Message(Role.SYSTEM, "One."), QUESTION, Message(Role.SYSTEM, " "), Message(Role.SYSTEM, "Two.")),
        tools=(WEATHER, strict),
        tool_choice="required",
        temperature=0.5,
        top_p=0.9,
        max_tokens=9,
        stop=("END", "\n"),
        seed=1,
        response_format={"type": "json_schema", "json_schema": schema},
        extra={"reasoning_effort": "low", "logit_bias": {}, "presence_penalty": 0, "user": "u", "parallel_tool_calls": True},
    )
    body = await sent_body(chat_request)
    assert body == {
        "system": [text_block("One."), text_block("Two.")],
        "messages": [{"role": "user", "content": [text_block(QUESTION.content)]}],
        "inferenceConfig": {"maxTokens": 9, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END", "\n"]},
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": "weather",
                        "description": WEATHER.description,
                        "inputSchema": {"json": WEATHER.parameters},
                    }
                },
                {"toolSpec": {"name": "add", "inputSchema": {"json": {"type": "object"}}, "strict": True}},
            ],
            "toolChoice": {"any": {}},
        },
        "outputConfig": {
            "textFormat": {
                "type": "json_schema",
                "structure": {"jsonSchema": {"name": "x", "schema": '{"type": "object"}'}},
            },
            "effort": "low",
        },
    }


async def test_the_body_of_a_plain_question_has_no_other_fields() -> None:
    body = await sent_body(replace(request(), temperature=0.0))
    assert body == {
        "messages": [{"role": "user", "content": [text_block(QUESTION.content)]}],
        "inferenceConfig": {"temperature": 0.0},
    }


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, None),
        ("auto", {"auto": {}}),
        ("required", {"any": {}}),
        (NamedTool("weather"), {"tool": {"name": "weather"}}),
    ],
)
async def test_tool_choices_are_mapped(choice: ToolChoice | None, sent: Json) -> None:
    body = await sent_body(replace(request(), tools=(WEATHER,), tool_choice=choice))
    assert cast(Payload, body["toolConfig"]).get("toolChoice") == sent


HISTORY = (
    QUESTION,
    Message(Role.ASSISTANT, "I look it up. ", (CALL, ToolCall("call/2", "no w", ""))),
    Message(Role.TOOL, "rain", tool_call_id="call_1"),
    Message(Role.TOOL, " ", tool_call_id="call/2"),
    Message(Role.USER, "And?"),
)


async def test_tool_results_become_blocks_of_one_message() -> None:
    body = await sent_body(replace(request(*HISTORY), tools=(WEATHER,)))
    assert body["messages"] == [
        {"role": "user", "content": [text_block(QUESTION.content)]},
        {
            "role": "assistant",
            "content": [
                text_block("I look it up."),
                {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Köln"}}},
                {"toolUse": {"toolUseId": "call_2", "name": "no_w", "input": {}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "call_1", "content": [text_block("rain")]}},
                {"toolResult": {"toolUseId": "call_2", "content": [text_block("(nothing)")]}},
                text_block("And?"),
            ],
        },
    ]


@pytest.mark.parametrize("no_choice", [{"tools": (WEATHER,), "tool_choice": "none"}, {}])
async def test_earlier_tool_calls_become_text_if_no_tool_may_be_called(no_choice: dict[str, object]) -> None:
    chat_request = request(*HISTORY)
    body = await sent_body(replace(chat_request, tools=(WEATHER,), tool_choice="none") if no_choice else chat_request)
    assert "toolConfig" not in body
    assert body["messages"] == [
        {"role": "user", "content": [text_block(QUESTION.content)]},
        {
            "role": "assistant",
            "content": [
                text_block("I look it up."),
                text_block('[Called the tool weather with {"city": "Köln"}]'),
                text_block("[Called the tool no w with {}]"),
            ],
        },
        {
            "role": "user",
            "content": [
                text_block("[Result of a tool call]\nrain"),
                text_block("[Result of a tool call]\n(nothing)"),
                text_block("And?"),
            ],
        },
    ]


names = st.text("ab._/:-ü", max_size=70)
turns = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(" ab", max_size=4), st.lists(names, max_size=3)))


@given(turns)
def test_any_history_becomes_valid_alternating_turns(history: list[tuple[str, str, list[str]]]) -> None:
    messages = [Message(Role.SYSTEM, "x")]
    for role, words, ids in history:
        if role == "user":
            messages.append(Message(Role.USER, words))
        else:
            messages.append(Message(Role.ASSISTANT, words, tuple(ToolCall(name, name, "{}") for name in ids)))
            messages += [Message(Role.TOOL, words, tool_call_id=name) for name in ids]
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    chat_request = replace(request(*messages, QUESTION), tools=(WEATHER,))
    anyio.run(reply_of, bedrock(upstream, key=KEY), chat_request)
    sent = cast(list[dict[str, list[dict[str, dict[str, str]]]]], upstream.body["messages"])
    roles = [str(message["role"]) for message in sent]
    assert roles[0] == "user"
    assert all(one != next_one for one, next_one in pairwise(roles))
    assert all(message["content"] for message in sent)
    asked_ids: list[str] = []
    answered_ids: list[str] = []
    for message in sent:
        for block in message["content"]:
            if "toolUse" in block:
                asked_ids.append(block["toolUse"]["toolUseId"])
                assert set(block["toolUse"]["name"]) <= LETTERS
                assert 0 < len(block["toolUse"]["name"]) <= 64
            elif "toolResult" in block:
                answered_ids.append(block["toolResult"]["toolUseId"])
            else:
                assert str(block["text"]).strip()
    assert asked_ids == answered_ids
    assert len(set(asked_ids)) == len(asked_ids)
    assert all(0 < len(name) <= 64 and set(name) <= LETTERS for name in asked_ids)


LETTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


async def test_pictures_are_sent_as_bytes() -> None:
    parts = (
        "What is this?",
        Image(f"data:image/png;base64,{PNG}", "low"),
        " ",
        "And this?",
        Image(f"data:image/webp;base64,{PNG}"),
    )
    body = await sent_body(request(Message(Role.USER, "What is this?\nAnd this?", parts=parts)))
    assert cast(list[Payload], body["messages"])[0]["content"] == [
        text_block("What is this?"),
        {"image": {"format": "png", "source": {"bytes": PNG}}},
        text_block("And this?"),
        {"image": {"format": "webp", "source": {"bytes": PNG}}},
    ]


@pytest.mark.parametrize(
    ("chat_request", "param"),
    [
        (replace(request(), extra={"presence_penalty": 0.5}), "presence_penalty"),
        (replace(request(), extra={"frequency_penalty": -0.5}), "frequency_penalty"),
        (replace(request(), extra={"logit_bias": {"1": 2}}), "logit_bias"),
        (replace(request(), extra={"verbosity": "low"}), "verbosity"),
        (replace(request(), extra={"reasoning_effort": "minimal"}), "reasoning_effort"),
        (replace(request(), tools=(WEATHER,), extra={"parallel_tool_calls": False}), "parallel_tool_calls"),
        (request(Message(Role.USER, "", parts=(Image("https://example.com/cat.png"),))), "messages"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_unsupported_fields_are_rejected_before_sending(chat_request: ChatRequest, param: str, stream: bool) -> None:
    upstream = Upstream(json_answer(answer(text_block("Hi"))))
    with pytest.raises(BackendUnsupported, match="Bedrock") as raised:
        await reply_of(bedrock(upstream), replace(chat_request, stream=stream))
    assert raised.value.param == param
    assert upstream.requests == []


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
async def test_json_without_a_strict_schema_becomes_an_instruction(kind: str) -> None:
    schema: Payload = {"json_schema": {"name": "x", "schema": {"type": "object"}}} if kind == "json_schema" else {}
    body = await sent_body(replace(request(), response_format={"type": kind, **schema}))
    assert "outputConfig" not in body
    assert "JSON" in str(body["system"])
    assert ('{"type": "object"}' in str(body["system"])) == (kind == "json_schema")


async def test_a_collected_stream_equals_the_blocking_reply() -> None:
    blocking = await reply_of(bedrock(Upstream(json_answer(BLOCKING))))
    streamed = await reply_of(bedrock(Upstream(text(STREAM))), request(stream=True))
    assert streamed == blocking
    calls = (ToolCall("tooluse_1", "weather", '{"city": "Köln"}'), ToolCall("tooluse_2", "now", "{}"))
    assert blocking.message == Message(Role.ASSISTANT, "In Köln 😀", calls)
    assert (blocking.finish_reason, blocking.usage) == (FinishReason.TOOL_CALLS, TokenUsage(113, 5))


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_the_size_of_chunks_does_not_change_the_answer(cuts: list[int]) -> None:
    async def collect(chunks: list[bytes]) -> list[ChatDelta]:
        return await deltas_of(bedrock(Upstream(Answer(chunks=chunks)), key=KEY), request(stream=True))

    pieces = [STREAM[begin:stop] for begin, stop in pairwise([0, *sorted(cuts), len(STREAM)])]
    assert anyio.run(collect, pieces) == anyio.run(collect, [STREAM])


words = st.text(max_size=8)
tool_uses = st.lists(st.tuples(st.text("ab_", min_size=1, max_size=4), st.dictionaries(words, words, max_size=2)), max_size=3)


@given(st.lists(words, max_size=4), tool_uses, st.integers(1, 9), st.sampled_from(["end_turn", "max_tokens", "tool_use"]))
def test_any_collected_stream_equals_the_blocking_reply(
    contents: list[str], uses: list[tuple[str, dict[str, str]]], size: int, reason: str
) -> None:
    begins: list[dict[str, Json]] = [{"toolUseId": f"t_{n}", "name": name} for n, (name, _) in enumerate(uses)]
    blocks: list[Payload] = [{"toolUse": {**use, "input": args}} for use, (_, args) in zip(begins, uses, strict=True)]
    events = [START, *(block_delta(0, text=content) for content in contents), block_stop(0)]
    for index, (use, (_, args)) in enumerate(zip(begins, uses, strict=True), start=1):
        arguments = json.dumps(args, ensure_ascii=False)
        events.append(block_start(index, {"toolUse": use}))
        events += [
            block_delta(index, toolUse={"input": arguments[at : at + size]})
            for at in range(0, len(arguments) if args else 0, size)
        ]
        events.append(block_stop(index))

    async def compare() -> None:
        stream = b"".join([*events, end(reason), METADATA])
        streamed = await reply_of(bedrock(Upstream(text(stream)), key=KEY), request(stream=True))
        blocking = answer(text_block("".join(contents)), *blocks, stop=reason)
        assert streamed == await reply_of(bedrock(Upstream(json_answer(blocking)), key=KEY))

    anyio.run(compare)


@pytest.mark.parametrize(
    ("stop_reason", "expected"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("guardrail_intervened", FinishReason.CONTENT_FILTER),
        ("content_filtered", FinishReason.CONTENT_FILTER),
        ("something_new", FinishReason.STOP),
    ],
)
async def test_stop_reasons_are_mapped(stop_reason: str, expected: FinishReason) -> None:
    blocking = await deltas_of(bedrock(Upstream(json_answer(answer(stop=stop_reason)))))
    streamed = await deltas_of(bedrock(Upstream(text(START + end(stop_reason) + METADATA))), request(stream=True))
    for deltas in (blocking, streamed):
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [expected]


@pytest.mark.parametrize("reason", ["malformed_model_output", "malformed_tool_use"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_malformed_model_output_is_a_failure(reason: str, stream: bool) -> None:
    upstream = Upstream(text(START + end(reason) + METADATA) if stream else json_answer(answer(stop=reason)))
    with pytest.raises(BackendUnavailable, match="malformed"):
        await deltas_of(bedrock(upstream), request(stream=stream))


ON_DEMAND = (
    "Invocation of model ID x with on-demand throughput isn’t supported. Retry your request with the ID or ARN of an "
    "inference profile that contains this model."
)
FAILURES: list[tuple[str, int, str, type[AttemptFailed]]] = [
    ("ThrottlingException", 429, "Too many requests, please wait before trying again.", BackendRateLimited),
    ("ModelNotReadyException", 429, "Model is not ready for inference.", BackendUnavailable),
    ("ModelTimeoutException", 408, "Model has timed out in processing the request.", BackendTimeout),
    ("ModelErrorException", 424, "The model failed.", BackendUnavailable),
    ("ModelStreamErrorException", 424, "The model failed.", BackendUnavailable),
    ("InternalServerException", 500, "Oops.", BackendUnavailable),
    ("ServiceUnavailableException", 503, "Bedrock is unable to process your request.", BackendUnavailable),
    ("AccessDeniedException", 403, "You don't have access to the model with the specified model ID.", BackendForbidden),
    ("ExpiredTokenException", 403, "The security token included in the request is expired", BackendAuthError),
    ("UnrecognizedClientException", 403, "The security token included in the request is invalid.", BackendAuthError),
    ("ServiceQuotaExceededException", 400, "Your request exceeds the service quota for your account.", BackendForbidden),
    ("ResourceNotFoundException", 404, "The specified resource ARN was not found.", BackendForbidden),
    ("ValidationException", 400, "The provided model identifier is invalid.", BackendForbidden),
    (
        "ValidationException",
        400,
        ON_DEMAND,
        BackendForbidden,
    ),
    # The text of a caller does not decide the failure.
    (
        "ValidationException",
        400,
        "Value 'The provided model identifier is invalid.' at 'toolConfig' failed to satisfy constraint",
        BackendBadRequest,
    ),
    (
        "ValidationException",
        400,
        "1 validation error detected: Value 'prompt is too long' at 'toolConfig' failed to satisfy constraint",
        BackendBadRequest,
    ),
    ("ValidationException", 400, "Input is too long for requested model.", BackendContextLength),
    ("ValidationException", 400, "prompt is too long: 210000 tokens > 200000 maximum", BackendContextLength),
    ("ValidationException", 400, "400 Bad Request: Too many input tokens. Max input tokens: 8192", BackendContextLength),
    ("ValidationException", 400, "Malformed input request: 1.5 is not less or equal to 1", BackendBadRequest),
]


@pytest.mark.parametrize(("kind", "status", "message", "failure"), FAILURES)
@pytest.mark.parametrize("suffix", ["", ":http://internal.amazon.com/coral/com.amazon.bedrock/"])
@pytest.mark.parametrize("stream", [True, False])
async def test_each_exception_has_its_failure(
    kind: str, status: int, message: str, failure: type[AttemptFailed], suffix: str, stream: bool
) -> None:
    refusal = json_answer({"message": message}, status, x_amzn_errortype=kind + suffix)
    with pytest.raises(failure) as raised:
        await deltas_of(bedrock(Upstream(refusal)), request(stream=stream))
    assert type(raised.value) is failure
    assert (raised.value.message, raised.value.status) == (message, status)


@pytest.mark.parametrize(
    "message", ["This model doesn't support tool use in streaming mode.", "The model is unsupported for streaming."]
)
async def test_a_model_that_cannot_stream_gets_a_blocking_request(message: str) -> None:
    refusal = json_answer({"message": message}, 400, x_amzn_errortype="ValidationException")
    upstream = Upstream(refusal, json_answer(BLOCKING))
    chat_request = replace(request(stream=True), tools=(WEATHER,))
    assert (await reply_of(bedrock(upstream), chat_request)).message.content == "In Köln 😀"
    assert [one.url.rpartition("/")[2] for one in upstream.requests] == ["converse-stream", "converse"]
    assert upstream.requests[0].body == upstream.requests[1].body


@pytest.mark.parametrize(
    ("kind", "message", "failure"),
    [
        ("throttlingException", "Too many tokens.", BackendRateLimited),
        ("modelStreamErrorException", "The model failed.", BackendUnavailable),
        ("internalServerException", "Oops.", BackendUnavailable),
        ("serviceUnavailableException", "Busy.", BackendUnavailable),
        ("validationException", "Input is too long for requested model.", BackendContextLength),
        ("validationException", "no", BackendBadRequest),
        ("somethingNewException", "no", BackendUnavailable),
    ],
)
@pytest.mark.parametrize("after", [0, 1, 2])
async def test_an_exception_inside_a_stream_has_its_failure(
    kind: str, message: str, failure: type[AttemptFailed], after: int
) -> None:
    stream = [START, block_delta(0, text="Hi")][:after]
    texts: list[str] = []
    with pytest.raises(failure, match=message) as raised:
        async with aclosing(
            bedrock(Upstream(text(b"".join([*stream, exception(kind, {"message": message})])))).chat(
                request(stream=True), context()
            )
        ) as deltas:
            async for delta in deltas:
                texts.append(delta.content)
    assert type(raised.value) is failure
    assert texts == ["Hi"][: max(0, after - 1)]


async def test_errors_do_not_contain_our_arn() -> None:
    message = (
        "User: arn:aws:sts::123456789012:assumed-role/gw/fn is not authorized to perform: bedrock:InvokeModel on resource: "
        "arn:aws:bedrock:eu-central-1::foundation-model/x at bedrock-runtime.eu-central-1.amazonaws.com"
    )
    with pytest.raises(BackendAuthError) as raised:
        await reply_of(bedrock(Upstream(json_answer({"Message": message, "message": message}, 403))))
    assert "123456789012" not in raised.value.message
    assert "amazonaws" not in raised.value.message


async def test_a_stream_without_usage_is_complete() -> None:
    reply = await reply_of(bedrock(Upstream(text(START + block_delta(0, text="Hi") + end("end_turn")))), request(stream=True))
    assert (reply.message.content, reply.finish_reason, reply.usage) == ("Hi", FinishReason.STOP, None)


@pytest.mark.parametrize(
    "body",
    [
        *(STREAM[:cut] for cut in (0, 1, len(START), len(START) + 20, len(STREAM) - len(METADATA) - 1)),
        START + frame({":message-type": "error", ":error-code": "Internal", ":error-message": "no"}, b""),
        b"no event stream at all, but long enough",
        STREAM[:-4] + b"\0\0\0\0",
        event("messageStop", {"stopReason": 7}),
        event("contentBlockDelta", []),
        frame({":event-type": "contentBlockDelta", ":message-type": "event"}, b"{"),
        START + block_delta(5, toolUse={"input": "{}"}),
        START + block_start(0, {"toolUse": {"toolUseId": "", "name": "x"}}),
    ],
)
async def test_a_malformed_or_incomplete_stream_is_a_failure(body: bytes) -> None:
    with pytest.raises(BackendUnavailable):
        await deltas_of(bedrock(Upstream(text(body))), request(stream=True))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        json.dumps({**answer(text_block("Hi")), "stopReason": ""}).encode(),
        json.dumps(answer({"toolUse": {"toolUseId": "x", "name": ""}})).encode(),
        json.dumps({"output": {}, "stopReason": "end_turn"}).encode(),
    ],
)
async def test_a_malformed_answer_is_a_failure(body: bytes) -> None:
    with pytest.raises(BackendUnavailable):
        await reply_of(bedrock(Upstream(text(body))))


async def test_half_a_surrogate_pair_waits_for_the_other_half() -> None:
    halves = [
        b'{"contentBlockIndex": 0, "delta": {"text": "\\ud83d"}}',
        b'{"contentBlockIndex": 0, "delta": {"text": "\\ude00"}}',
    ]
    pieces = [frame({":event-type": "contentBlockDelta", ":message-type": "event"}, half) for half in halves]
    deltas = await deltas_of(bedrock(Upstream(text(b"".join([START, *pieces, end("end_turn")])))), request(stream=True))
    assert collect_deltas(deltas).message.content == "😀"


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({}, TokenUsage()),
        ({"inputTokens": 10, "outputTokens": -5}, TokenUsage(10)),
        ({"inputTokens": 10**13, "outputTokens": 5, "cacheReadInputTokens": None}, TokenUsage(0, 5)),
        ("lots", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_invalid_token_count_does_not_fail_the_answer(usage: Json, tokens: TokenUsage | None, stream: bool) -> None:
    streamed = Answer(
        chunks=[START, block_delta(0, text="Hi"), block_stop(0), end("end_turn"), event("metadata", {"usage": usage})]
    )
    upstream = Upstream(streamed if stream else json_answer(answer(text_block("Hi")) | {"usage": usage}))
    reply = await reply_of(bedrock(upstream, KEY), request(stream=stream))
    assert (reply.message.content, reply.usage) == ("Hi", tokens)
