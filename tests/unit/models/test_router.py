"""Failover, retries and final errors of the router. Time is simulated."""

import json
import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, get_args

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.errors import (
    ContextLengthExceeded,
    NoBackendAvailable,
    RateLimited,
    SpassError,
    StorageUnavailable,
    UpstreamError,
    UpstreamRejected,
    UpstreamTimeout,
)
from spass.core.messages import Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.models.attempt import RoutingRecord
from spass.models.backend_limits import STRATEGIES, Failover
from spass.models.backends import provider_of_model, serves
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendContextLength,
    BackendRateLimited,
    BackendTimeout,
    BackendUnavailable,
)
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, pack_rows
from spass.tenancy.config import BackendConfig, LlmConfig, ModelConfig
from tests.unit.models.router_harness import (
    BUSY,
    EXPECTED,
    HELLO,
    RouterHarness,
    ScriptedProvider,
    error_from_response,
    in_turn,
    text_of,
)

pytestmark = pytest.mark.anyio
LOST_ANSWER = BackendUnavailable("gone")


async def test_the_first_backend_answers_and_is_recorded() -> None:
    harness = RouterHarness(HELLO, HELLO)
    chat = harness.chat()
    assert (chat.routing.backend, chat.routing.attempts) == (None, 0)
    assert await text_of(chat) == "Hello"
    assert (chat.routing.backend, chat.routing.attempts) == ("a", 1)
    assert harness.attempts == {"a": 1, "b": 0}


async def test_lower_priority_numbers_go_first() -> None:
    harness = RouterHarness(HELLO, HELLO, HELLO)
    priorities = {"a": 3, "b": 1, "c": 2}
    harness.backends = [backend.model_copy(update={"priority": priorities[backend.name]}) for backend in harness.backends]
    chat = harness.chat()
    await text_of(chat)
    assert chat.routing.backend == "b"


async def test_failing_backends_are_attempted_in_turn() -> None:
    harness = RouterHarness(BUSY, BUSY)
    chat = harness.chat()
    assert isinstance(await error_from_response(chat), UpstreamError)
    assert harness.attempts == {"a": 2, "b": 2}
    assert (chat.routing.backend, chat.routing.attempts) == ("b", 4)
    assert harness.pauses == [1.0, 2.0]


@pytest.mark.parametrize("retries", [0, 1, 5])
async def test_retries_are_counted_over_all_backends(retries: int) -> None:
    harness = RouterHarness(BUSY, BUSY, BUSY, retries=retries)
    await error_from_response(harness.chat())
    assert sum(harness.attempts.values()) == 1 + retries


async def test_pauses_double_up_to_the_maximum() -> None:
    harness = RouterHarness(BUSY, retries=6, retry_base_delay=2.0, retry_max_delay=10.0)
    await error_from_response(harness.chat())
    assert harness.pauses == [2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


async def test_the_jitter_is_full() -> None:
    harness = RouterHarness(BUSY, random_value=0.25)
    await error_from_response(harness.chat())
    assert harness.pauses == [0.25, 0.5, 1.0]
    harness = RouterHarness(BUSY, random_value=0.0)
    await error_from_response(harness.chat())
    assert harness.pauses == []


@pytest.mark.parametrize(
    ("failure", "pause"),
    [
        (BackendRateLimited("slow", retry_after=7.0), 7.0),
        (BackendUnavailable("slow", retry_after=0.5), 1.0),
        (BackendRateLimited("slow", retry_after=3600.0), 20.0),
    ],
)
async def test_the_pause_is_the_longer_of_backoff_and_retry_after_up_to_a_maximum(failure: AttemptFailed, pause: float) -> None:
    harness = RouterHarness(in_turn(failure, HELLO), retry_max_delay=20.0)
    assert await text_of(harness.chat()) == "Hello"
    assert harness.pauses == [pause]


@pytest.mark.parametrize("seconds", [1.0, 7.0])
async def test_a_pause_beyond_the_deadline_fails_immediately(seconds: float) -> None:
    harness = RouterHarness(BUSY)
    assert isinstance(await error_from_response(harness.chat(seconds=1.0)), UpstreamTimeout)
    assert (harness.pauses, harness.attempts) == ([], {"a": 1})
    harness = RouterHarness(BackendRateLimited("slow", retry_after=7.0))
    failure = await error_from_response(harness.chat(seconds=seconds))
    assert (type(failure), failure.retry_after, harness.pauses) == (RateLimited, 7.0, [])


async def test_one_deadline_covers_all_attempts() -> None:
    harness = RouterHarness(BackendTimeout("slow"), BackendTimeout("slow"), retries=20)
    for provider in harness.providers.values():
        provider.seconds = 100.0
    chat = harness.chat()
    assert isinstance(await error_from_response(chat), UpstreamTimeout)
    assert chat.routing.attempts == 3


async def test_a_timeout_before_the_deadline_is_a_failure_of_the_backend() -> None:
    harness = RouterHarness(BackendTimeout("slow"), retries=1)
    harness.providers["a"].seconds = 10.0
    assert isinstance(await error_from_response(harness.chat()), UpstreamError)
    harness = RouterHarness(BackendTimeout("slow"), HELLO)
    assert await text_of(harness.chat()) == "Hello"


async def test_a_backend_that_timed_out_after_sending_is_not_retried() -> None:
    harness = RouterHarness(BackendTimeout("slow"))
    harness.mark_sent()
    chat = harness.chat()
    assert isinstance(await error_from_response(chat), UpstreamError)
    assert (harness.attempts, chat.routing.failed_attempt_usage, chat.routing.estimated) == ({"a": 1}, EXPECTED, True)


async def test_a_timeout_fails_over_to_another_backend() -> None:
    harness = RouterHarness(BackendTimeout("slow"), in_turn(BUSY, HELLO))
    harness.providers["a"].sent = True
    chat = harness.chat()
    assert await text_of(chat) == "Hello"
    assert (harness.attempts, chat.routing.failed_attempt_usage) == ({"a": 1, "b": 2}, EXPECTED)


async def test_a_timeout_before_sending_is_retried_and_not_billed() -> None:
    harness = RouterHarness(in_turn(BackendTimeout("no connection"), HELLO))
    chat = harness.chat()
    assert await text_of(chat) == "Hello"
    assert (harness.attempts, chat.routing.failed_attempt_usage) == ({"a": 2}, TokenUsage())


async def test_the_usage_of_lost_answers_is_added() -> None:
    harness = RouterHarness(in_turn(LOST_ANSWER, LOST_ANSWER, HELLO))
    harness.mark_sent()
    chat = harness.chat()
    assert await text_of(chat) == "Hello"
    assert (chat.routing.answered_usage, chat.routing.failed_attempt_usage) == (TokenUsage(10, 2), EXPECTED + EXPECTED)
    assert chat.routing.usage == TokenUsage(30, 202)


@pytest.mark.parametrize(
    ("failure", "lost"),
    [
        (BackendRateLimited("no", status=429), TokenUsage()),
        (BackendAuthError("no", status=401), TokenUsage()),
        (BackendBadRequest("no", status=400), TokenUsage()),
        (BackendUnavailable("overloaded", status=529), TokenUsage()),
        (BackendTimeout("slow", status=504), EXPECTED),
        (LOST_ANSWER, EXPECTED),
    ],
)
async def test_an_answer_that_contains_only_an_error_is_not_billed(failure: AttemptFailed, lost: TokenUsage) -> None:
    harness = RouterHarness(failure, retries=0)
    harness.mark_sent()
    chat = harness.chat()
    await error_from_response(chat)
    assert (chat.routing.usage, chat.routing.estimated) == (lost, lost == EXPECTED)


async def test_wrong_and_lost_vectors_are_billed() -> None:
    good = vectors((1.0, 2.0), (1.0, 2.0))
    harness = RouterHarness(in_turn(vectors((1.0, 2.0)), BackendUnavailable("gone"), good))
    harness.mark_sent()
    routing = RoutingRecord()
    await harness.embed(routing=routing)
    assert (routing.answered_usage, routing.failed_attempt_usage, routing.estimated) == (TokenUsage(4), EXPECTED, True)


async def test_a_request_after_its_deadline_makes_no_attempt() -> None:
    harness = RouterHarness(HELLO)
    assert isinstance(await error_from_response(harness.chat(seconds=0)), UpstreamTimeout)
    assert harness.attempts == {"a": 0}


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (BackendBadRequest("no such field", status=400), UpstreamRejected),
        (BackendContextLength("too long"), ContextLengthExceeded),
    ],
)
async def test_a_bad_request_is_not_sent_to_other_backends(failure: AttemptFailed, error: type[SpassError]) -> None:
    harness = RouterHarness(failure, HELLO)
    raised = await error_from_response(harness.chat())
    assert (type(raised), raised.message) == (error, failure.message)
    assert harness.attempts == {"a": 1, "b": 0}


@pytest.mark.parametrize(("failure", "retries"), [(BUSY, 3), (BackendAuthError("bad key", status=401), 0)])
async def test_a_failover_to_the_second_backend_has_no_pause(failure: AttemptFailed, retries: int) -> None:
    harness = RouterHarness(failure, HELLO, retries=retries)
    chat = harness.chat()
    assert await text_of(chat) == "Hello"
    assert (chat.routing.backend, chat.routing.attempts, harness.pauses) == ("b", 2, [])


async def test_keys_refused_everywhere_are_an_upstream_error() -> None:
    harness = RouterHarness(BackendAuthError("bad key sk-123", status=401), BackendAuthError("bad key", status=403))
    failure = await error_from_response(harness.chat())
    assert isinstance(failure, UpstreamError)
    assert "sk-123" not in failure.message
    assert harness.attempts == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("failure", "others"),
    [(BackendAuthError("bad key"), [BUSY, HELLO]), (BackendRateLimited("slow", retry_after=30.0), [BUSY, BUSY, HELLO])],
)
async def test_a_backend_that_refused_or_asked_to_wait_is_not_the_next(failure: AttemptFailed, others: list[Any]) -> None:
    harness = RouterHarness(failure, in_turn(*others))
    assert await text_of(harness.chat()) == "Hello"
    assert harness.attempts == {"a": 1, "b": len(others)}


async def test_no_retry_follows_the_first_token() -> None:
    harness = RouterHarness((ChatDelta("Hel"), BUSY), HELLO)
    texts = []
    with pytest.raises(UpstreamError):
        async for delta in harness.chat():
            texts.append(delta.content)
    assert (texts, harness.attempts) == (["Hel"], {"a": 1, "b": 0})


async def test_a_stream_that_breaks_before_its_first_token_is_retried() -> None:
    harness = RouterHarness((BUSY,), HELLO)
    assert await text_of(harness.chat()) == "Hello"


@pytest.mark.parametrize(("waits", "expected"), [((9.0, 4.0), 4.0), ((None, 5.0), 5.0), ((None, None), 1.0)])
async def test_429_from_all_backends_is_rate_limited_with_retry_after(
    waits: tuple[float | None, float | None], expected: float
) -> None:
    harness = RouterHarness(*(BackendRateLimited("slow", retry_after=wait) for wait in waits), retries=1)
    failure = await error_from_response(harness.chat())
    assert (type(failure), failure.retry_after) == (RateLimited, expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((1.0, 30.0), None, 30.0),  # its last retry_after
        ((20.0,), (5.0, 60.0), 15.0),  # five seconds later
        ((3.0, None), None, 1.0),
    ],
)
async def test_retry_after_uses_the_last_answer_of_each_backend(
    a: tuple[float | None, ...], b: tuple[float | None, ...] | None, expected: float
) -> None:
    answers = [in_turn(*(BackendRateLimited("slow", retry_after=wait) for wait in waits)) for waits in (a, b) if waits]
    harness = RouterHarness(*answers, retries=sum(len(waits) for waits in (a, b) if waits) - 1, retry_base_delay=0.001)
    failure = await error_from_response(harness.chat())
    assert isinstance(failure, RateLimited)
    assert failure.retry_after == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(("other", "error"), [(BUSY, UpstreamError), (BackendAuthError("bad key"), RateLimited)])
async def test_429_counts_if_no_other_backend_could_answer(other: AttemptFailed, error: type[SpassError]) -> None:
    assert isinstance(await error_from_response(RouterHarness(other, BackendRateLimited("slow")).chat()), error)


async def test_closing_the_stream_closes_the_answer_of_the_provider() -> None:
    harness = RouterHarness(HELLO)
    async with aclosing(harness.chat()) as chat:
        await anext(chat)
    assert harness.providers["a"].closed == 1


async def test_each_failed_attempt_is_logged_without_the_providers_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await text_of(RouterHarness(BackendAuthError("bad key sk-1234 at https://x", status=401), in_turn(BUSY, HELLO)).chat())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("at") for line in lines]
    common = {"level": "warning", "request_id": "req_outer", "event": "backend_failed"}
    assert lines == [
        {**common, "backend": "a", "failure": "BackendAuthError", "status": 401},
        {**common, "backend": "b", "failure": "BackendUnavailable", "status": 503},
    ]


SAMPLING_REQUEST = ChatRequest(
    "m",
    (Message(Role.USER, "Hi"),),
    temperature=0.2,
    top_p=0.9,
    max_tokens=7,
    seed=1,
    extra={"presence_penalty": 1, "frequency_penalty": 1, "logit_bias": {"1": 2}, "user": "u"},
)


@pytest.mark.parametrize("sampling", [True, False])
async def test_a_provider_gets_the_models_window_and_only_sampling_it_accepts(sampling: bool) -> None:
    harness = RouterHarness(BUSY, HELLO)
    harness.models = [ModelConfig(name="m", context_window=10, sampling=sampling)]
    await text_of(harness.router.chat(SAMPLING_REQUEST, harness.context()))
    plain = replace(SAMPLING_REQUEST, temperature=None, top_p=None, extra={"user": "u"})
    expected = replace(SAMPLING_REQUEST if sampling else plain, context_window=10)
    assert [provider.requests for provider in harness.providers.values()] == [[expected]] * 2


async def test_an_error_raised_by_chat_itself_is_handled() -> None:
    config = LlmConfig(backends=(BackendConfig(name="e", provider="embedded", supported_models=("m",)),))
    router = Router(config, [], lambda _: None)
    assert isinstance(await error_from_response(router.chat(SAMPLING_REQUEST, CallContext(Deadline.after(10)))), UpstreamRejected)


async def test_a_model_that_no_backend_serves_is_an_error() -> None:
    harness = RouterHarness(HELLO)
    failure = await error_from_response(harness.chat("gpt-unknown"))
    assert isinstance(failure, NoBackendAvailable)
    assert (harness.router.serves("m"), harness.router.serves("gpt-unknown")) == (True, False)


async def test_only_the_log_names_the_variable_of_a_missing_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    harness = RouterHarness(HELLO, HELLO)
    harness.backends[0] = harness.backends[0].model_copy(update={"api_key_env": "FIRST_KEY"})
    chat = harness.chat()
    await text_of(chat)
    assert chat.routing.backend == "b"
    harness.backends = harness.backends[:1]
    failure = await error_from_response(harness.chat())
    assert isinstance(failure, NoBackendAvailable)
    assert "FIRST_KEY" not in failure.message
    assert "configured with a key" in failure.message
    line = json.loads(capsys.readouterr().out)
    assert (line["event"], line["model"], line["set"], line["request_id"]) == ("key_missing", "m", ["FIRST_KEY"], "req_outer")
    harness.keys["FIRST_KEY"] = "secret"
    assert await text_of(harness.chat()) == "Hello"


async def test_a_key_that_is_set_later_is_read_once() -> None:
    variables: list[str] = []
    harness = RouterHarness(HELLO)

    def key_of(variable: str) -> str | None:
        variables.append(variable)
        return "secret" if len(variables) > 1 else None

    config = LlmConfig(backends=(BackendConfig(name="a", provider="anthropic"),))
    router = Router(config, [], key_of, provider_of=lambda backend, key: harness.providers["a"])
    request = ChatRequest("claude-x", (Message(Role.USER, "Hi"),))
    context = CallContext(Deadline.after(10))
    assert isinstance(await error_from_response(router.chat(request, context)), NoBackendAvailable)
    for _ in range(3):
        assert await text_of(router.chat(request, context)) == "Hello"
    assert variables == ["ANTHROPIC_API_KEY"] * 2
    await router.aclose()
    assert harness.providers["a"].closed == 4


async def test_a_refused_key_is_read_again() -> None:
    keys = ["old", "old", "new"]
    keys_used: list[str | None] = []

    def provider_of(backend: BackendConfig, key: str | None) -> ScriptedProvider:
        keys_used.append(key)
        return ScriptedProvider(RouterHarness(), [HELLO if key == "new" else BackendAuthError("bad key", status=401)])

    config = LlmConfig(backends=(BackendConfig(name="a", provider="anthropic"),))
    router = Router(config, [], lambda _: keys.pop(0), provider_of=provider_of)
    request = ChatRequest("claude-x", (Message(Role.USER, "Hi"),))
    context = CallContext(Deadline.after(10))
    for _ in range(2):
        assert isinstance(await error_from_response(router.chat(request, context)), UpstreamError)
    assert await text_of(router.chat(request, context)) == "Hello"
    assert await text_of(router.chat(request, context)) == "Hello"
    assert keys_used == ["old", "new"]


async def test_an_unreadable_key_stops_only_its_backend() -> None:
    def key_of(variable: str) -> str | None:
        raise StorageUnavailable("not now")

    harness = RouterHarness(HELLO)
    unreadable = BackendConfig(name="k", provider="openai", api_key_env="A_KEY", supported_models=("m",))
    request = ChatRequest("m", (Message(Role.USER, "Hi"),))
    context = CallContext(Deadline.after(10))
    pair = Router(
        LlmConfig(backends=(unreadable, *harness.backends)), [], key_of, provider_of=lambda backend, key: harness.providers["a"]
    )
    assert await text_of(pair.chat(request, context)) == "Hello"
    single = Router(LlmConfig(backends=(unreadable,)), [], key_of, provider_of=lambda backend, key: harness.providers["a"])
    assert isinstance(await error_from_response(single.chat(request, context)), StorageUnavailable)


async def test_the_backend_gets_its_own_name_for_the_model() -> None:
    harness = RouterHarness(BUSY, HELLO)
    harness.backends[0] = harness.backends[0].model_copy(update={"model_names": {"m": "vendor/m-2"}})
    await text_of(harness.chat())
    assert (harness.providers["a"].models, harness.providers["b"].models) == (["vendor/m-2"], ["m"])


@pytest.mark.parametrize(
    ("backend", "serving", "others"),
    [
        ({"provider": "xai"}, ["grok-4"], ["claude-x", "gpt-x", "llama", "xgrok-4"]),
        ({"provider": "anthropic"}, ["claude-opus-4.7"], ["grok-4", "llama"]),
        ({"provider": "openai"}, ["gpt-x", "o1-x", "o3-mini"], ["claude-x", "text-embedding-3-small"]),
        ({"provider": "ollama"}, ["llama-4", "nomic-embed-text-v1.5", "o4"], ["gpt-x", "grok-4", "all-minilm-l6-v2"]),
        ({"provider": "embedded"}, ["all-minilm-l6-v2"], ["llama", "gpt-x"]),
        ({"provider": "openai", "supported_models": ("llama", "claude-x")}, ["llama", "claude-x"], ["gpt-x"]),
        ({"provider": "ollama", "supported_models": ("llama",)}, ["llama"], ["qwen"]),
        ({"provider": "openai", "model_names": {"llama": "meta/llama"}}, ["llama", "gpt-x"], ["qwen"]),
        (
            {"provider": "openai", "supported_models": ("llama",), "model_names": {"qwen": "q"}},
            ["llama", "qwen"],
            ["gpt-x"],
        ),
    ],
)
def test_backends_serve_by_list_mapping_or_name(backend: dict[str, object], serving: list[str], others: list[str]) -> None:
    config = BackendConfig.model_validate(backend)
    assert [model for model in serving + others if serves(config, model)] == serving


@given(st.text(max_size=12))
def test_each_model_name_belongs_to_one_provider(model: str) -> None:
    providers = ["xai", "anthropic", "openai", "ollama", "embedded"]
    serving = [name for name in providers if serves(BackendConfig.model_validate({"provider": name}), model)]
    assert serving == [provider_of_model(model) or "ollama"]


async def test_failover_keeps_the_order_of_the_file_for_equal_priorities() -> None:
    backends = [
        BackendConfig(name=name, provider="xai", priority=priority) for name, priority in zip("abcd", (2, 1, 2, 1), strict=True)
    ]

    async def load_of(_: BackendConfig) -> float:
        return 0.0

    assert [backend.name for backend in await Failover().order(backends, load_of)] == ["b", "d", "a", "c"]


@pytest.mark.parametrize("strategy", get_args(LlmConfig.model_fields["strategy"].annotation))
def test_every_strategy_that_can_be_configured_exists(strategy: str) -> None:
    assert LlmConfig.model_validate({"strategy": strategy}).strategy in STRATEGIES


def vectors(*rows: Sequence[float]) -> EmbeddingReply:
    return EmbeddingReply(pack_rows(rows), len(rows), len(rows[0]), TokenUsage(2))


async def test_vectors_are_returned_and_their_backend_is_recorded() -> None:
    good = vectors((1.0, 2.0), (3.0, -3.4e38))
    routing = RoutingRecord()
    assert await RouterHarness(BUSY, good).embed(routing=routing) == good
    assert (routing.backend, routing.attempts) == ("b", 2)


@pytest.mark.parametrize(
    "bad",
    [
        vectors((1.0, 2.0)),
        vectors((1.0, 2.0), (1.0, 2.0), (1.0, 2.0)),
        vectors((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)),
        vectors((1.0, math.nan), (1.0, 2.0)),
        vectors((math.inf, 2.0), (-math.inf, 2.0)),
        vectors((1e300, 2.0), (1.0, 2.0)),
        EmbeddingReply(b"\0" * 15, 2, 2, TokenUsage()),
    ],
)
async def test_wrong_vectors_are_a_failure(bad: EmbeddingReply) -> None:
    harness = RouterHarness(bad, retries=1)
    routing = RoutingRecord()
    with pytest.raises(UpstreamError):
        await harness.embed(routing=routing)
    assert (routing.backend, routing.attempts) == ("a", 2)
    good = vectors((1.0, 2.0), (1.0, 2.0))
    assert await RouterHarness(bad, good).embed() == good


failures = st.one_of(
    st.builds(BackendUnavailable, st.just("x"), status=st.sampled_from([None, 503]), retry_after=st.none() | st.floats(0, 1e9)),
    st.builds(BackendRateLimited, st.just("x"), status=st.just(429), retry_after=st.none() | st.floats(0, 1e9)),
    st.builds(BackendTimeout, st.just("x"), status=st.sampled_from([None, 504])),
    st.builds(BackendAuthError, st.just("x"), status=st.just(401)),
)


@given(
    st.lists(st.lists(failures, min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(0, 8),
    st.floats(0, 300),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 50),
)
def test_attempts_and_pauses_stay_within_their_limits(
    scripts: list[list[AttemptFailed]], retries: int, seconds: float, random_value: float, attempt_seconds: float
) -> None:

    async def run() -> None:
        harness = RouterHarness(*(in_turn(*script) for script in scripts), retries=retries, random_value=random_value)
        for provider in harness.providers.values():
            provider.seconds = min(attempt_seconds, seconds)
        start = harness.time
        chat = harness.chat(seconds=seconds)
        failure = await error_from_response(chat)
        assert isinstance(failure, UpstreamError | UpstreamTimeout | RateLimited)
        assert chat.routing.attempts <= 1 + retries + len(scripts)
        assert all(0 < pause < 60.001 for pause in harness.pauses)
        assert harness.time <= start + seconds + attempt_seconds

    anyio.run(run)


@given(st.lists(st.lists(failures, min_size=1, max_size=6), min_size=1, max_size=4), st.integers(0, 8), st.booleans())
def test_each_billable_attempt_is_counted(scripts: list[list[AttemptFailed]], retries: int, sent: bool) -> None:
    async def run() -> None:
        harness = RouterHarness(*(in_turn(*script) for script in scripts), retries=retries)
        if sent:
            harness.mark_sent()
        chat = harness.chat()
        await error_from_response(chat)
        outcomes = [
            [*script, *[script[-1]] * attempts][:attempts]
            for script, attempts in zip(scripts, harness.attempts.values(), strict=True)
        ]
        lost = [failure for row in outcomes for failure in row if isinstance(failure, BackendTimeout) or failure.status is None]
        assert chat.routing.usage == sum([EXPECTED] * len(lost) * sent, TokenUsage())
        if sent:
            assert not any(isinstance(failure, BackendTimeout) for row in outcomes for failure in row[:-1])

    anyio.run(run)
