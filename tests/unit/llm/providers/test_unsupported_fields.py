"""What a request asks for and a provider has not: refused, unless another backend has it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from spass.core.errors import InvalidRequest, NoBackendAvailable, RateLimited, SpassError, UpstreamError
from spass.core.messages import Image, Json, Message, Role
from spass.llm.errors import BackendUnsupported
from spass.llm.retries import Timing
from spass.llm.router import Router
from spass.llm.types import ChatRequest, NamedTool
from spass.tenancy.config import LlmConfig
from tests.unit.llm.scripted_upstream import (
    KEY,
    QUESTION,
    WEATHER,
    Answer,
    Upstream,
    backend,
    context,
    provider_at,
    reply_of,
    request,
    whole,
)

pytestmark = pytest.mark.anyio

FAR = request(Message(Role.USER, "Look.", parts=("Look.", Image("https://example.com/cat.png"))))
TOOLS = replace(request(), tools=(WEATHER,))


def extra(**fields: Json) -> ChatRequest:
    return replace(TOOLS, extra=fields)


WISHES: Mapping[str, ChatRequest] = {
    "presence_penalty": extra(presence_penalty=1),
    "frequency_penalty": extra(frequency_penalty=1),
    "logit_bias": extra(logit_bias={"1": 5}),
    "verbosity": extra(verbosity="high"),
    "parallel_tool_calls": extra(parallel_tool_calls=False),
    "tool_choice": replace(TOOLS, tool_choice="required"),
    "messages": FAR,
    "stop": replace(request(), stop=("END", "\n")),
    "reasoning_effort": extra(reasoning_effort="none"),
}
LACKING = {
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
    "anthropic": whole({"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}),
    "bedrock": whole({"output": {"message": {"content": [{"text": "Hi"}]}}, "stopReason": "end_turn"}),
}
HI = whole({"choices": [{"message": {"content": "Hi"}}]})


@pytest.mark.parametrize("field", WISHES)
@pytest.mark.parametrize("provider", LACKING)
async def test_a_provider_does_what_is_asked_or_says_what_it_has_not(provider: str, field: str) -> None:
    upstream = Upstream(ANSWERS.get(provider, HI))
    asked = provider_at(upstream, provider)
    if field in LACKING[provider]:
        with pytest.raises(BackendUnsupported) as raised:
            await reply_of(asked, WISHES[field])
        assert (raised.value.param, upstream.asked) == (field, [])
    else:
        assert (await reply_of(asked, WISHES[field])).message.content == "Hi"


@pytest.mark.parametrize("provider", LACKING)
async def test_what_happens_anyway_is_no_wish(provider: str) -> None:
    nothing = extra(
        presence_penalty=0, frequency_penalty=0.0, logit_bias={}, verbosity="medium", parallel_tool_calls=True, user="u"
    )
    upstream = Upstream(ANSWERS.get(provider, HI))
    for asked in (
        replace(nothing, tool_choice="auto", seed=7, top_p=1.0, temperature=1.0),
        replace(request(), tool_choice="required", extra={"parallel_tool_calls": False}),  # without tools
        replace(TOOLS, tool_choice="none", extra={"parallel_tool_calls": False}),
    ):
        assert (await reply_of(provider_at(upstream, provider), asked)).message.content == "Hi"


@pytest.mark.parametrize("provider", LACKING)
async def test_a_temperature_above_a_scale_is_the_most_that_it_has(provider: str) -> None:
    for asked, to_one in ((0.5, 0.5), (1.0, 1.0), (1.5, 1.0)):
        upstream = Upstream(ANSWERS.get(provider, HI))
        await reply_of(provider_at(upstream, provider), replace(request(), temperature=asked))
        told = upstream.body.get("inferenceConfig", upstream.body)
        assert isinstance(told, dict)
        assert told["temperature"] == (to_one if provider in {"anthropic", "bedrock"} else asked)


async def test_ollama_is_shown_no_tools_that_it_may_not_call() -> None:
    upstream = Upstream(HI)
    await reply_of(provider_at(upstream, "ollama"), replace(TOOLS, tool_choice="none"))
    assert not {"tools", "tool_choice"} & set(upstream.body)
    await reply_of(provider_at(upstream, "ollama"), TOOLS)
    assert "tools" in upstream.body


@pytest.mark.parametrize("choice", ["required", NamedTool("weather")])
async def test_a_choice_that_ollama_would_overlook_is_refused(choice: NamedTool) -> None:
    with pytest.raises(BackendUnsupported, match="ollama does not support 'tool_choice'"):
        await reply_of(provider_at(Upstream(HI), "ollama"), replace(TOOLS, tool_choice=choice))


async def routed(asked: ChatRequest, upstreams: Mapping[str, Upstream]) -> str:
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
        provider_of=lambda made, key: provider_at(upstreams[made.provider], made.provider),
    )
    return "".join([delta.content async for delta in router.chat(asked, context())])


async def test_a_backend_that_has_it_answers_though_a_preferred_one_has_not() -> None:
    upstreams = {"bedrock": Upstream(ANSWERS["bedrock"]), "openai": Upstream(HI)}
    assert await routed(FAR, upstreams) == "Hi"
    assert (len(upstreams["bedrock"].asked), len(upstreams["openai"].asked)) == (0, 1)


async def test_if_no_backend_has_it_the_caller_hears_the_field() -> None:
    upstreams = {"bedrock": Upstream(ANSWERS["bedrock"]), "ollama": Upstream(HI)}
    with pytest.raises(InvalidRequest, match="data: URLs") as raised:
        await routed(FAR, upstreams)
    assert raised.value.param == "messages"


@pytest.mark.parametrize(
    ("answer", "error"),
    [(whole({}, 429), RateLimited), (whole({}, 500), UpstreamError), (whole({}, 401), UpstreamError)],
)
async def test_if_only_the_backend_that_has_it_failed_its_failure_is_the_answer(answer: Answer, error: type[SpassError]) -> None:
    for order in (("ollama", "openai"), ("openai", "ollama")):
        with pytest.raises(error):
            await routed(FAR, {name: Upstream(answer if name == "openai" else HI) for name in order})


async def test_a_refusal_is_about_the_request_and_not_about_the_backend() -> None:
    upstream = Upstream(HI)
    with pytest.raises(InvalidRequest):
        await routed(FAR, {"ollama": upstream})
    assert await routed(request(QUESTION), {"ollama": upstream}) == "Hi"
    with pytest.raises(NoBackendAvailable):
        await routed(replace(request(), model="model-2"), {"ollama": upstream})
