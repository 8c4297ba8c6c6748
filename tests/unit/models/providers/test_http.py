"""Errors on the way to a provider, and the failures that they become."""

import asyncio
import gzip
import inspect
import json
import logging
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import httpx
import pytest

from spass.core.errors import UpstreamError
from spass.core.messages import Json
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendCannotStream,
    BackendContextLength,
    BackendForbidden,
    BackendRateLimited,
    BackendRequestTooLarge,
    BackendTimeout,
    BackendUnavailable,
)
from spass.models.provider_registry import PROVIDERS, make_provider
from spass.models.providers import http
from spass.models.providers.error_responses import error_from_response, retry_after
from spass.models.providers.http import translate_errors
from spass.models.providers.openai_compatible import OpenAi
from spass.models.router import Router
from spass.models.types import Provider
from spass.tenancy.config import LlmConfig
from tests.unit.aws.eventstreams import event
from tests.unit.models.scripted_upstream import (
    KEY,
    Answer,
    Upstream,
    backend,
    context,
    deltas_of,
    json_answer,
    provider_at,
    reply_of,
    request,
    text,
)

pytestmark = pytest.mark.anyio


def httpx_exceptions() -> list[type[Exception]]:
    kinds = [kind for _, kind in inspect.getmembers(httpx, inspect.isclass) if issubclass(kind, Exception)]
    assert len(kinds) > 20
    return kinds


@pytest.mark.parametrize("kind", httpx_exceptions())
def test_every_exception_of_httpx_is_translated(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "at https://secret.example.com")
    with pytest.raises(AttemptFailed) as raised, translate_errors():
        raise error
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is error
    assert isinstance(raised.value, BackendTimeout) == issubclass(kind, httpx.TimeoutException)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (httpx.ConnectError("no"), BackendUnavailable),
        (httpx.ConnectTimeout("no"), BackendTimeout),
        (httpx.PoolTimeout("no"), BackendTimeout),
        (httpx.RemoteProtocolError("no"), BackendUnavailable),
        (httpx.LocalProtocolError("no"), BackendAuthError),
    ],
)
@pytest.mark.parametrize("provider", ["openai", "anthropic", "bedrock"])
@pytest.mark.parametrize("stream", [True, False])
async def test_each_connection_error_has_its_failure(
    error: Exception, failure: type[AttemptFailed], provider: str, stream: bool
) -> None:
    with pytest.raises(failure):
        await deltas_of(provider_at(Upstream(error), provider), request(stream=stream))


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (301, BackendForbidden),
        (400, BackendBadRequest),
        (401, BackendAuthError),
        (402, BackendAuthError),
        (403, BackendForbidden),
        (404, BackendBadRequest),
        (405, BackendForbidden),
        (408, BackendUnavailable),
        (409, BackendUnavailable),
        (413, BackendBadRequest),
        (422, BackendBadRequest),
        (425, BackendUnavailable),
        (429, BackendRateLimited),
        (451, BackendForbidden),
        (500, BackendUnavailable),
        (503, BackendUnavailable),
        (529, BackendUnavailable),
    ],
)
@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama", "xai", "bedrock"])
@pytest.mark.parametrize("stream", [True, False])
async def test_each_status_has_its_failure(status: int, failure: type[AttemptFailed], provider: str, stream: bool) -> None:
    with pytest.raises(failure) as raised:
        await deltas_of(
            provider_at(Upstream(json_answer({"error": {"message": "so it is"}}, status)), provider), request(stream=stream)
        )
    assert type(raised.value) is failure
    assert (raised.value.message, raised.value.status) == ("so it is", status)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error": {"message": "words", "code": "x"}}', "words"),
        ('{"type": "error", "error": {"type": "invalid_request_error", "message": "words"}}', "words"),
        ('{"error": "words"}', "words"),
        ('{"code": "Client specified an invalid argument", "error": "words"}', "words"),
        ('{"message": "words"}', "words"),
        ('{"detail": "words"}', "words"),
        ('"words"', "words"),
        ('{"detail": [{"loc": ["body"]}]}', "The provider answered 400."),
        ("<html>nginx</html>", "The provider answered 400."),
        ("", "The provider answered 400."),
        ("[" * 10_000, "The provider answered 400."),
        ('{"error": {"error": {"error": null}}}', "The provider answered 400."),
    ],
)
def test_the_message_is_found_in_each_error_format(body: str, message: str) -> None:
    assert error_from_response(400, {}, body.encode()).message == message


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"message": "too long", "code": "context_length_exceeded"}}',
        '{"error": {"message": "This model\'s maximum context length is 8192 tokens."}}',
        '{"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}',
        '{"error": "This model\'s maximum prompt length is 131072 but the request contains 200000 tokens."}',
        '{"error": {"type": "exceed_context_size_error", "message": "the request exceeds the available context size"}}',
        '{"error": {"message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease it"}}',
        '{"error": {"message": "Input tokens exceed the configured limit of 272000 tokens."}}',
        '{"error": {"message": "Please reduce the length of the messages or completion."}}',
    ],
)
def test_a_prompt_that_is_too_long_or_without_room_raises_context_length(body: str) -> None:
    assert type(error_from_response(400, {}, body.encode())) is BackendContextLength


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        ("This model doesn't support tool use in streaming mode.", BackendCannotStream),
        ("The model is unsupported for streaming.", BackendCannotStream),
        ("Your organization must be verified to stream this model. Please go to: https://x and verify.", BackendCannotStream),
        ("Invalid schema 'The model is unsupported for streaming.'", BackendBadRequest),
        ("The model is unsupported for streaming. It said", BackendBadRequest),
    ],
)
def test_a_model_that_cannot_stream_raises_cannot_stream(message: str, failure: type[AttemptFailed]) -> None:
    assert type(error_from_response(400, {}, json.dumps({"error": {"message": message}}).encode())) is failure


@pytest.mark.parametrize(
    "message",
    [
        "Invalid 'max_tokens': exceeds the maximum of 8192 tokens",
        "max_tokens: 99999 > 8192, which is the maximum allowed number of output tokens for this model",
        "max_tokens is too large: 9000. This model supports at most 4096 completion tokens.",
        "`temperature` is deprecated for this model",
        "Invalid value: 'taking all into account'",
        "The model `x` does not exist or you do not have access to it.",
    ],
)
def test_other_limits_of_a_request_are_not_context_length(message: str) -> None:
    failed = error_from_response(400, {}, json.dumps({"error": {"message": message}}).encode())
    assert (type(failed), failed.message) == (BackendBadRequest, message)


@pytest.mark.parametrize("status", [400, 403, 404, 422, 429])
@pytest.mark.parametrize(
    "payload",
    [
        {
            "code": "Client specified an invalid argument",
            "error": "Incorrect API key provided: xa***yz. You can obtain an API key from https://console.x.ai.",
        },
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade.",
            },
        },
        {"error": {"type": "invalid_request_error", "message": "This organization has been disabled."}},
        {"error": {"message": "You have reached your specified API usage limits. You will regain access on 2026-12-01."}},
        {"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}},
        [{"error": {"code": 400, "message": "no", "details": [{"@type": "x", "reason": "API_KEY_INVALID"}, "y"]}}],
        {"error": {"message": "Your account is not active, please check your billing details.", "code": "billing_not_active"}},
        {"error": {"message": "no", "code": "insufficient_quota"}},
    ],
)
def test_a_refused_key_or_account_is_an_auth_error_at_any_status(status: int, payload: object) -> None:
    assert type(error_from_response(status, {}, json.dumps(payload).encode())) is BackendAuthError


# Error messages of providers for a bad request. ``{}`` stands for a text of the caller.
QUOTING_MESSAGES = (
    "Invalid schema for response_format '{}': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"string\"'.",
    "Invalid value: '{}'. Supported values are: 'none', 'auto', and 'required'.",
    "Invalid parameter: {}",
    "'{}' is not one of ['auto', 'none']",
    "Invalid 'tools[0].function.name': string does not match pattern. Got {}",
    "tools.0.custom.name: {}: String should match pattern",
    "1 validation error for ChatCompletionRequest\nresponse_format\n  Input should be a valid dictionary [input_value='{}']",
)
CALLER_TEXTS = (
    *(
        "api_key",
        "API key",
        "billing",
        "quota",
        "insufficient_quota",
        "billing_error",
        "your account",
        "usage limits",
        "credit balance",
    ),
    *("context_length_exceeded", "context length", "maximum context length is 8192", "prompt is too long", "too many tokens"),
    "Incorrect API key provided: xa***yz. You can obtain an API key from https://console.x.ai.",
    "This organization has been disabled.",
    "Request too large for m on tokens per min (TPM): Limit 1, Requested 2",
    "Content violates usage guidelines.",
)


@pytest.mark.parametrize("caller_text", CALLER_TEXTS)
@pytest.mark.parametrize("message", QUOTING_MESSAGES)
@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_quoted_text_of_a_caller_does_not_decide_the_failure(status: int, message: str, caller_text: str) -> None:
    error = {
        "message": message.replace("{}", caller_text),
        "type": "invalid_request_error",
        "param": "response_format",
        "code": None,
    }
    for body in ({"error": error}, {"error": error["message"]}, {"type": "error", "error": error}):
        assert type(error_from_response(status, {}, json.dumps(body).encode())) is BackendBadRequest


@pytest.mark.parametrize("caller_text", CALLER_TEXTS)
def test_quoted_text_does_not_turn_a_rate_limit_into_a_size_limit(caller_text: str) -> None:
    body = {"error": {"message": f"Rate limit reached for '{caller_text}'. Try again in 6s.", "type": "tokens"}}
    assert type(error_from_response(429, {}, json.dumps(body).encode())) is BackendRateLimited


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            429,
            "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 30601. The input",
        ),
        (
            413,
            "Request too large for model `l` in organization `o` service tier `x` on tokens per day (TPD): Limit 1, Requested 2,",
        ),
        (429, "Extra usage is required for long context requests."),
        (
            402,
            "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but can only afford 533",
        ),
        (
            402,
            "Prompt tokens limit exceeded: 64128 > 6964. To increase, visit https://openrouter.ai/settings/credits and upgrade",
        ),
    ],
)
def test_a_request_above_a_rate_limit_is_too_large(status: int, message: str) -> None:
    body = {"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}
    assert type(error_from_response(status, {"retry-after": "60"}, json.dumps(body).encode())) is BackendRequestTooLarge


@pytest.mark.parametrize("afford", ["0", "-3"])
def test_an_account_without_balance_is_an_auth_error(afford: str) -> None:
    message = (
        f"This request requires more credits, or fewer max_tokens. You requested up to 10 tokens, but can only afford {afford}."
    )
    assert (
        type(error_from_response(402, {}, json.dumps({"error": {"message": message, "code": 402}}).encode())) is BackendAuthError
    )


@pytest.mark.parametrize("code", ["The caller does not have permission to execute the specified operation", "permission-denied"])
def test_content_that_xai_forbids_is_a_bad_request(code: str) -> None:
    body = {
        "code": code,
        "error": "Content violates usage guidelines. Team: t, Model: grok-4, Failed check: SAFETY_CHECK_TYPE_BIO",
    }
    assert type(error_from_response(403, {}, json.dumps(body).encode())) is BackendBadRequest


@pytest.mark.parametrize(
    "body", [b'{"error":' * 700 + b"1" + b"}" * 700, b'[[{"error": ["x"]}]]', b"[]", b"null", b'{"error": {"details": 3}}']
)
def test_an_error_body_of_any_shape_has_a_failure(body: bytes) -> None:
    assert error_from_response(400, {}, body).message == "The provider answered 400."


XAI_KEY = "Incorrect API key provided: xa***yz. You can obtain an API key from https://console.x.ai."


async def test_a_key_refused_with_status_400_fails_over_and_is_redacted() -> None:
    refused = Upstream(json_answer({"code": "Client specified an invalid argument", "error": XAI_KEY}, 400))
    serving = Upstream(json_answer({"choices": [{"message": {"content": "Hi"}}]}))
    backends = (backend("xai", supported_models=("m",)), backend("openai", supported_models=("m",), priority=2))
    upstreams = {"xai": refused, "openai": serving}

    def router(config: LlmConfig) -> Router:
        return Router(
            config, [], lambda _: KEY, provider_of=lambda served, key: provider_at(upstreams[served.provider], served.provider)
        )

    chat_request = replace(request(), model="m")
    assert [delta.content async for delta in router(LlmConfig(backends=backends)).chat(chat_request, context())] == ["Hi"]
    with pytest.raises(UpstreamError) as raised:
        await anext(router(LlmConfig(backends=backends[:1])).chat(chat_request, context()))
    assert "xa***yz" not in raised.value.message
    assert "API key" not in raised.value.message
    assert len(refused.requests) == 2


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama", "xai"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("inside", [True, False])
async def test_errors_do_not_contain_the_address_of_the_backend(provider: str, stream: bool, inside: bool) -> None:
    error: dict[str, Json] = {
        "message": "Bad at myhost, MYHOST:9000 AKIAABCDEFGHIJKLMNOP",
        "type": "rate_limit_error",
        "code": 400,
    }
    if inside and provider == "ollama":
        upstream = Upstream(json_answer({"error": error}))
    elif inside and stream:
        name = "event: error\n" if provider == "anthropic" else ""
        upstream = Upstream(text(f"{name}data: {json.dumps({'type': 'error', 'error': error})}\n\n"))
    else:
        upstream = Upstream(json_answer({"error": error}, 400))
    with pytest.raises(AttemptFailed) as raised:
        await deltas_of(provider_at(upstream, provider, base_url="http://myhost:9000/v1"), request(stream=stream))
    assert raised.value.message == "Bad at […], […] […]"


async def test_errors_contain_neither_key_nor_address() -> None:
    message = f"Bad key {KEY}, see https://internal.example.com/x"
    with pytest.raises(BackendAuthError) as raised:
        await reply_of(provider_at(Upstream(json_answer({"error": {"message": message}}, 401))))
    assert str(raised.value) == raised.value.message == "Bad key […], see […]"


async def test_log_lines_contain_neither_key_nor_address(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for status in (200, 500):
            with suppress(AttemptFailed):
                await reply_of(provider_at(Upstream(json_answer({}, status)), base_url="http://secret.example.com/v1"))
    assert "secret.example.com" not in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "1e308"}, 86_400.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Fri, 99 Foo 2026 99:99:99 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_retry_after_may_be_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert retry_after({"retry-after": later}) == pytest.approx(30, abs=2)


async def test_retry_after_reaches_the_failure() -> None:
    with pytest.raises(BackendRateLimited) as raised:
        await reply_of(provider_at(Upstream(json_answer({}, 429, retry_after="7"))))
    assert raised.value.retry_after == 7


@pytest.mark.parametrize("provider", ["openai", "anthropic", "bedrock"])
async def test_a_broken_stream_fails_after_its_first_deltas(provider: str) -> None:
    first = {
        "openai": b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n',
        "anthropic": b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}}\n\n',
        "bedrock": event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hi"}}),
    }[provider]
    upstream = Upstream(Answer(chunks=[first], breaks=httpx.ReadError("gone")))
    texts = []
    with pytest.raises(BackendUnavailable):
        async for delta in provider_at(upstream, provider).chat(request(stream=True), context()):
            texts.append(delta.content)
    assert texts == ["Hi"]


async def test_closing_the_iterator_closes_the_response() -> None:
    closed: list[bool] = []
    answer = Answer(chunks=[b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'] * 3, on_close=lambda: closed.append(True))
    async with aclosing(provider_at(Upstream(answer)).chat(request(stream=True), context())) as deltas:
        assert (await anext(deltas)).content == "Hi"
        assert not closed
    assert closed == [True]


async def test_no_request_is_sent_after_the_deadline() -> None:
    upstream = Upstream(text(""))
    with pytest.raises(BackendTimeout):
        await deltas_of(provider_at(upstream), seconds=0)
    assert upstream.requests == []


class SlowBody(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
        await asyncio.sleep(60)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_slow_answer_ends_at_the_deadline(stream: bool) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=SlowBody()))
    provider = make_openai(transport)
    start_time = time.monotonic()
    with pytest.raises(BackendTimeout):
        await deltas_of(provider, request(stream=stream), seconds=0.2)
    assert time.monotonic() - start_time < 5


def make_openai(transport: httpx.AsyncBaseTransport, timeout: float = 120) -> Provider:
    return OpenAi(backend(timeout=timeout), KEY, transport=transport)


@dataclass
class PacedBody(httpx.AsyncByteStream):
    """A body whose pieces arrive at intervals of some seconds."""

    pauses: Sequence[float]
    stream: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number, pause in enumerate(self.pauses, 1):
            await asyncio.sleep(pause)
            last = number == len(self.pauses)
            if self.stream:
                yield b"data: [DONE]\n\n" if last else b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
            else:
                yield b'{"choices": [{"message": {"content": "Hi"}}]}' if last else b" "


def paced_provider(pauses: Sequence[float], *, stream: bool) -> Provider:
    return make_openai(httpx.MockTransport(lambda _: httpx.Response(200, stream=PacedBody(pauses, stream))), timeout=0.3)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_may_take_longer_than_the_read_timeout(stream: bool) -> None:
    assert await deltas_of(paced_provider([0.1] * 6, stream=stream), request(stream=stream))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pauses", [[5.0, 0.0], [0.0, 0.0, 5.0]])
async def test_a_silence_above_the_read_timeout_ends_the_attempt(stream: bool, pauses: Sequence[float]) -> None:
    start_time = time.monotonic()
    with pytest.raises(BackendTimeout):
        await deltas_of(paced_provider(pauses, stream=stream), request(stream=stream))
    assert time.monotonic() - start_time < 3


async def test_an_answer_that_does_not_begin_ends_at_the_timeout() -> None:
    async def never_answer(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(5)
        return httpx.Response(200)

    with pytest.raises(BackendTimeout):
        await deltas_of(make_openai(httpx.MockTransport(never_answer), timeout=0.1))


async def test_an_answer_ends_at_the_deadline_of_the_request() -> None:
    with pytest.raises(BackendTimeout):
        await deltas_of(paced_provider([0.1] * 50, stream=True), request(stream=True), seconds=0.4)


async def test_an_error_without_a_body_in_time_has_the_failure_of_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ERROR_SECONDS", 0.1)
    transport = httpx.MockTransport(lambda _: httpx.Response(401, stream=SlowBody()))
    with pytest.raises(BackendAuthError):
        await deltas_of(make_openai(transport))


async def test_a_slow_reader_does_not_time_out() -> None:
    upstream = Upstream(text(b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n' * 2 + b"data: [DONE]\n\n"))
    texts = []
    async for delta in provider_at(upstream).chat(request(stream=True), context(0.1)):
        await asyncio.sleep(0.2)
        texts.append(delta.content)
    assert texts[:2] == ["Hi", "Hi"]


async def test_an_endless_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 1000)
    with pytest.raises(BackendUnavailable, match="too long"):
        await reply_of(provider_at(Upstream(Answer(chunks=[b" " * 600] * 10))))


async def test_a_small_answer_that_decompresses_to_a_huge_one_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 100_000)
    bomb = Answer(chunks=[gzip.compress(b" " * 10_000_000)], headers={"content-encoding": "gzip"})
    with pytest.raises(BackendUnavailable, match="too long"):
        await reply_of(provider_at(Upstream(bomb)))


async def peak_of_failure(answer: Answer) -> int:
    """Return the peak of memory, in bytes, while a provider reads ``answer``, which is a failure."""
    provider = provider_at(Upstream(answer))
    tracemalloc.start()
    try:
        with pytest.raises(BackendUnavailable):
            await reply_of(provider)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("status", [200, 500])
async def test_a_compressed_answer_takes_no_more_memory_than_its_limit(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 100_000)
    bomb = gzip.compress(b" " * 50_000_000)
    assert await peak_of_failure(Answer(status, [bomb], {"content-encoding": "gzip"})) < 5_000_000


async def test_an_answer_that_is_compressed_twice_is_a_failure() -> None:
    bomb = gzip.compress(gzip.compress(b" " * 50_000_000))
    assert await peak_of_failure(Answer(200, [bomb], {"content-encoding": "gzip, gzip"})) < 5_000_000


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)])
@pytest.mark.parametrize("size", [1, 1000, 10**6])
async def test_a_compressed_answer_is_read_in_pieces_of_any_size(
    coding: str, compress: Callable[[bytes], bytes], size: int
) -> None:
    text = "Tea. " * 100_000
    body = compress(json.dumps({"choices": [{"message": {"content": text}}]}).encode())
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    reply = await reply_of(provider_at(Upstream(Answer(chunks=pieces, headers={"content-encoding": coding}))))
    assert reply.message.content == text


async def test_other_work_runs_between_the_pieces_of_a_compressed_answer() -> None:
    body = gzip.compress(json.dumps({"choices": [{"message": {"content": "Tea"}}]}).encode() + b" " * 10_000_000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    answer = Answer(chunks=[body], headers={"content-encoding": "gzip"})
    assert (await reply_of(provider_at(Upstream(answer)))).message.content == "Tea"
    counting.cancel()
    assert turns > 150  # pieces of 64 KiB


async def test_bytes_after_a_compressed_answer_are_ignored() -> None:
    body = gzip.compress(b'{"choices": [{"message": {"content": "Tea"}}]}')
    answer = Answer(chunks=[body + b"x", b"y" * 1000], headers={"content-encoding": "gzip"})
    assert (await reply_of(provider_at(Upstream(answer)))).message.content == "Tea"


@pytest.mark.parametrize("coding", ["gzip", "br"])
async def test_an_answer_that_cannot_be_decompressed_is_a_failure(coding: str) -> None:
    with pytest.raises(BackendUnavailable):
        await reply_of(provider_at(Upstream(Answer(chunks=[b"plain"], headers={"content-encoding": coding}))))


async def test_a_compressed_error_has_the_failure_of_its_status() -> None:
    with pytest.raises(BackendRateLimited):
        await reply_of(provider_at(Upstream(Answer(429, [gzip.compress(b"{}")], {"content-encoding": "gzip"}))))


async def test_an_endless_error_has_the_failure_of_its_status() -> None:
    with pytest.raises(BackendUnavailable) as raised:
        await reply_of(provider_at(Upstream(Answer(500, [b"x" * 40_000] * 10))))
    assert raised.value.status == 500


async def test_a_key_that_no_header_can_contain_is_a_failure() -> None:
    for key in ("schlüssel", "two\nlines"):
        with pytest.raises(AttemptFailed):
            await reply_of(provider_at(Upstream(json_answer({})), key=key))


def test_a_provider_works_in_several_event_loops() -> None:
    provider = provider_at(Upstream(json_answer({"choices": [{"message": {"content": "Hi"}}]})))
    for _ in range(3):
        assert anyio.run(reply_of, provider).message.content == "Hi"
    anyio.run(provider.aclose)


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_registered_provider_can_be_created(name: str) -> None:
    assert callable(make_provider(backend(name), None).chat)
