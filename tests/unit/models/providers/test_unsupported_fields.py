"""Requests with fields that a provider does not support."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from spass.core.errors import InvalidRequest, NoBackendAvailable, RateLimited, SpassError, UpstreamError
from spass.core.messages import Image, Json, Message, Role
from spass.models.errors import BackendUnsupported
from spass.models.retries import Timing
from spass.models.router import Router
from spass.models.types import ChatRequest, NamedTool
from spass.tenancy.config import LlmConfig
from tests.unit.models.scripted_upstream import (
    KEY,
    QUESTION,
    WEATHER,
    Answer,
    Upstream,
    backend,
    context,
    json_answer,
    provider_at,
    reply_of,
    request,
)

pytestmark = pytest.mark.anyio

IMAGE_URL = request(Message(Role.USER, "Look.", parts=("Look.", Image("https://example.com/cat.png"))))
TOOLS = replace(request(), tools=(WEATHER,))


def extra(**fields: Json) -> ChatRequest:
    return replace(TOOLS, extra=fields)


REQUESTS: Mapping[str, ChatRequest] = {
    "presence_penalty": extra(presence_penalty=1),
    "frequency_penalty": extra(frequency_penalty=1),
    "logit_bias": extra(logit_bias={"1": 5}),
    "verbosity": extra(verbosity="high"),
    "parallel_tool_calls": extra(parallel_tool_calls=False),
    "tool_choice": replace(TOOLS, tool_choice="required"),
    "messages": IMAGE_URL,
    "stop": replace(request(), stop=("END", "\n")),
    "reasoning_effort": extra(reasoning_effort="none"),
}
UNSUPPORTED = {
    "openai": set[str](),
    "xai": {"logit_bias", "verbosity"},
    "ollama": {"logit_bias", "verbosity", "parallel_tool_calls", "tool_choice", "messages"},
    "anthropic": {
        "logit_bias",
        "verbosity",
        "presence_penalty",
        "frequency_penalty",
        "stop",
        "reasoning_effort",
    },
    "bedrock": {
        "logit_bias",
        "verbosity",
        "presence_penalty",
        "frequency_penalty",
        "parallel_tool_calls",
        "messages",
        "reasoning_effort",
    },
}
ANSWERS = {
    "ollama": json_answer({"message": {"role": "assistant", "content": "Hi"}, "done": True}),
    "anthropic": json_answer({"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}),
    "bedrock": json_answer({"output": {"message": {"content": [{"text": "Hi"}]}}, "stopReason": "end_turn"}),
}
ANSWER = json_answer({"choices": [{"message": {"content": "Hi"}}]})


@pytest.mark.parametrize("field", REQUESTS)
@pytest.mark.parametrize("provider", UNSUPPORTED)
async def test_a_provider_sends_each_field_or_rejects_it(provider: str, field: str) -> None:
    upstream = Upstream(ANSWERS.get(provider, ANSWER))
    target = provider_at(upstream, provider)
    if field in UNSUPPORTED[provider]:
        with pytest.raises(BackendUnsupported) as raised:
            await reply_of(target, REQUESTS[field])
        assert (raised.value.param, upstream.requests) == (field, [])
    else:
        assert (await reply_of(target, REQUESTS[field])).message.content == "Hi"


@pytest.mark.parametrize("provider", UNSUPPORTED)
async def test_default_values_are_accepted(provider: str) -> None:
    defaults = extra(
        presence_penalty=0, frequency_penalty=0.0, logit_bias={}, verbosity="medium", parallel_tool_calls=True, user="u"
    )
    upstream = Upstream(ANSWERS.get(provider, ANSWER))
    for chat_request in (
        replace(defaults, tool_choice="auto", seed=7, top_p=1.0, temperature=1.0),
        replace(request(), tool_choice="required", extra={"parallel_tool_calls": False}),  # without tools
        replace(TOOLS, tool_choice="none", extra={"parallel_tool_calls": False}),
    ):
        assert (await reply_of(provider_at(upstream, provider), chat_request)).message.content == "Hi"


@pytest.mark.parametrize("provider", UNSUPPORTED)
async def test_a_temperature_above_the_maximum_is_limited_to_it(provider: str) -> None:
    for temperature, limited in ((0.5, 0.5), (1.0, 1.0), (1.5, 1.0)):
        upstream = Upstream(ANSWERS.get(provider, ANSWER))
        await reply_of(provider_at(upstream, provider), replace(request(), temperature=temperature))
        sent = upstream.body.get("inferenceConfig") or upstream.body.get("options") or upstream.body
        assert isinstance(sent, dict)
        assert sent["temperature"] == (limited if provider in {"anthropic", "bedrock"} else temperature)


async def test_ollama_gets_no_tools_if_the_choice_is_none() -> None:
    upstream = Upstream(ANSWERS["ollama"])
    await reply_of(provider_at(upstream, "ollama"), replace(TOOLS, tool_choice="none"))
    assert not {"tools", "tool_choice"} & set(upstream.body)
    await reply_of(provider_at(upstream, "ollama"), TOOLS)
    assert "tools" in upstream.body


@pytest.mark.parametrize("effort", ["minimal", "xhigh"])
async def test_ollama_rejects_an_effort_that_it_would_ignore(effort: str) -> None:
    upstream = Upstream(ANSWERS["ollama"])
    with pytest.raises(BackendUnsupported, match="Use one of: none, low, medium, high") as raised:
        await reply_of(provider_at(upstream, "ollama"), extra(reasoning_effort=effort))
    assert (raised.value.param, upstream.requests) == ("reasoning_effort", [])


@pytest.mark.parametrize("choice", ["required", NamedTool("weather")])
async def test_a_tool_choice_that_ollama_ignores_is_rejected(choice: NamedTool) -> None:
    with pytest.raises(BackendUnsupported, match="ollama does not support 'tool_choice'"):
        await reply_of(provider_at(Upstream(ANSWER), "ollama"), replace(TOOLS, tool_choice=choice))


async def route(chat_request: ChatRequest, upstreams: Mapping[str, Upstream]) -> str:
    backends = tuple(
        backend(name, supported_models=("model-1",), priority=number) for number, name in enumerate(upstreams, start=1)
    )

    async def no_sleep(_: float) -> None:
        return

    router = Router(
        LlmConfig(backends=backends, retries=1),
        [],
        lambda _: KEY,
        timing=Timing(sleep=no_sleep),
        provider_of=lambda served, key: provider_at(upstreams[served.provider], served.provider),
    )
    return "".join([delta.content async for delta in router.chat(chat_request, context())])


async def test_a_backend_that_supports_the_request_answers() -> None:
    upstreams = {"bedrock": Upstream(ANSWERS["bedrock"]), "openai": Upstream(ANSWER)}
    assert await route(IMAGE_URL, upstreams) == "Hi"
    assert (len(upstreams["bedrock"].requests), len(upstreams["openai"].requests)) == (0, 1)


async def test_if_no_backend_supports_the_request_the_error_names_the_field() -> None:
    upstreams = {"bedrock": Upstream(ANSWERS["bedrock"]), "ollama": Upstream(ANSWER)}
    with pytest.raises(InvalidRequest, match="data: URLs") as raised:
        await route(IMAGE_URL, upstreams)
    assert raised.value.param == "messages"


@pytest.mark.parametrize(
    ("answer", "error"),
    [(json_answer({}, 429), RateLimited), (json_answer({}, 500), UpstreamError), (json_answer({}, 401), UpstreamError)],
)
async def test_the_failure_of_a_backend_that_supports_the_request_is_raised(answer: Answer, error: type[SpassError]) -> None:
    for order in (("ollama", "openai"), ("openai", "ollama")):
        with pytest.raises(error):
            await route(IMAGE_URL, {name: Upstream(answer if name == "openai" else ANSWER) for name in order})


async def test_rejecting_a_request_does_not_stop_the_backend() -> None:
    upstream = Upstream(ANSWERS["ollama"])
    with pytest.raises(InvalidRequest):
        await route(IMAGE_URL, {"ollama": upstream})
    assert await route(request(QUESTION), {"ollama": upstream}) == "Hi"
    with pytest.raises(NoBackendAvailable):
        await route(replace(request(), model="model-2"), {"ollama": upstream})
