"""Calls written as JSON text, through the whole pipeline: every provider, cost, audit, redaction and marks."""

import json
from collections.abc import AsyncGenerator, Callable
from decimal import Decimal
from typing import Any

import pytest

from spass.calls.datamark import MARK
from spass.calls.pipeline import Calls
from spass.core.errors import UpstreamError
from spass.core.messages import FinishReason, Json, Message, Role, ToolCall
from spass.models.errors import BackendUnavailable
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatReply, ChatRequest, Provider
from spass.redaction.text import REDACTED
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from tests.unit.aws.eventstreams import event
from tests.unit.calls.planted_secrets import BY_FORMAT
from tests.unit.calls.scripted_provider import CONFIG, audit_of, calls_of, make_scope, scripted_model
from tests.unit.collected_replies import collect_deltas
from tests.unit.models.scripted_upstream import KEY, QUESTION, WEATHER, Upstream, json_answer, provider_at, text
from tests.unit.models.wire_forms import USAGE, WireForm, WireScript, in_anthropic_form, in_ollama_form, in_openai_form

pytestmark = pytest.mark.anyio

CALL = '{"name": "weather", "parameters": {"city": "Köln"}}'


def marked() -> GatewayConfig:
    """Return ``CONFIG`` with its chat models marked as ones that write their calls as text."""
    values = CONFIG.model_dump()
    for model in values["models"]:
        model["tool_calls"] = "text"
    return GatewayConfig.model_validate(values)


def question(*messages: Message, stream: bool = True) -> ChatRequest:
    return ChatRequest("small", messages or (QUESTION,), (WEATHER,), stream=stream)


async def deltas_of(calls: Calls, store: TenantStore, request: ChatRequest | None = None) -> list[ChatDelta]:
    return [delta async for delta in calls.chat(make_scope(store), request or question())]


def pieces(written: str, reason: FinishReason | None = FinishReason.STOP) -> list[ChatDelta]:
    return [*map(ChatDelta, written), ChatDelta(finish_reason=reason, usage=USAGE)]


async def reply_to(script: Any, store: TenantStore, *messages: Message) -> ChatReply:
    return collect_deltas(await deltas_of(calls_of(scripted_model(script), marked()), store, question(*messages)))


def called(reply: ChatReply) -> list[tuple[str, Json]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.message.tool_calls]


# Every provider


PROMPT_TOKENS, COMPLETION_TOKENS = USAGE.prompt_tokens, USAGE.completion_tokens


def openai_answer(text: str) -> Json:
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}], "usage": usage}


def anthropic_answer(text: str) -> Json:
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": COMPLETION_TOKENS}
    content = [{"type": "text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn", "usage": usage}


def ollama_answer(text: str) -> Json:
    counts = {"prompt_eval_count": PROMPT_TOKENS, "eval_count": COMPLETION_TOKENS}
    return {"message": {"role": "assistant", "content": text}, "done": True, "done_reason": "stop", **counts}


def bedrock_answer(text: str) -> Json:
    message: Json = {"role": "assistant", "content": [{"text": text}]}
    return {"output": {"message": message}, "stopReason": "end_turn", "usage": BEDROCK_USAGE}


BEDROCK_USAGE: Json = {"inputTokens": PROMPT_TOKENS, "outputTokens": COMPLETION_TOKENS}


def in_bedrock_form(script: WireScript) -> list[bytes]:
    deltas = [event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": word}}) for word in script.text]
    ends = [event("contentBlockStop", {"contentBlockIndex": 0}), event("messageStop", {"stopReason": "end_turn"})]
    return [event("messageStart", {"role": "assistant"}), *deltas, *ends, event("metadata", {"usage": BEDROCK_USAGE})]


WIRES: dict[str, tuple[WireForm, Callable[[str], Json]]] = {
    "openai": (in_openai_form, openai_answer),
    "xai": (in_openai_form, openai_answer),
    "anthropic": (in_anthropic_form, anthropic_answer),
    "ollama": (in_ollama_form, ollama_answer),
    "bedrock": (in_bedrock_form, bedrock_answer),
}


def calls_at(provider: Provider, name: str, config: GatewayConfig) -> Calls:
    backends = [{"name": name, "provider": name, "api_key_env": "ANY", "supported_models": ["small"]}]
    llm = config.llm.model_validate({"retries": 0, "backends": backends})
    router = Router(llm, config.models, lambda _: KEY, provider_of=lambda *_: provider)
    return Calls(config.model_copy(update={"llm": llm}), router, Cascade(config))


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "blocking"])
async def test_written_calls_are_recognised_from_every_provider(
    store: TenantStore, name: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    written = f"```json\n[{CALL}, {CALL}]\n```"
    form, answer_of = WIRES[name]
    upstream = Upstream(text(b"".join(form(WireScript([*written])))) if stream else json_answer(answer_of(written)))

    async def deltas(config: GatewayConfig) -> list[ChatDelta]:
        return await deltas_of(calls_at(provider_at(upstream, name), name, config), store, question(stream=stream))

    recognised = collect_deltas(await deltas(marked()))
    assert called(recognised) == [("weather", {"city": "Köln"})] * 2
    assert (recognised.message.content, recognised.finish_reason) == ("", FinishReason.TOOL_CALLS)
    unmarked = collect_deltas(await deltas(CONFIG))
    assert (unmarked.message.content, unmarked.message.tool_calls) == (written, ())
    assert (recognised.usage, recognised.cost_usd) == (unmarked.usage, unmarked.cost_usd) == (USAGE, Decimal("0.0000235"))


# The pipeline around the calls


async def test_no_delta_before_the_end_shows_a_part_of_a_call(store: TenantStore) -> None:
    deltas = await deltas_of(calls_of(scripted_model(pieces(f"\n{CALL}")), marked()), store)
    assert [delta.content for delta in deltas] == [""] * len(deltas)
    assert [len(delta.tool_calls) for delta in deltas] == [1, 0]
    assert deltas[-1].finish_reason is FinishReason.TOOL_CALLS


async def test_other_text_of_a_marked_model_passes_as_it_would_unmarked(store: TenantStore) -> None:
    for written in ("It is 5 > 3.", f"I call {CALL}", "{'a': 1}"):
        both = [await deltas_of(calls_of(scripted_model(pieces(written)), config), store) for config in (marked(), CONFIG)]
        assert collect_deltas(both[0]) == collect_deltas(both[1])
        assert "".join(delta.content for delta in both[0]) == written
    plain = [await deltas_of(calls_of(scripted_model(pieces("It is.")), config), store) for config in (marked(), CONFIG)]
    assert plain[0] == plain[1]


async def test_a_stream_without_a_finish_reason_still_has_its_calls_and_text(store: TenantStore) -> None:
    reply = await reply_to(pieces(CALL, None), store)
    assert (called(reply), reply.finish_reason) == ([("weather", {"city": "Köln"})], FinishReason.TOOL_CALLS)
    assert (await reply_to(pieces(CALL[:-1], None), store)).message.content == CALL[:-1]


async def test_the_audit_has_the_finish_reason_that_the_caller_reads(store: TenantStore) -> None:
    await reply_to(pieces(CALL), store)
    (record,) = await audit_of(store)
    assert record["finish_reason"] == "tool_calls"


async def test_a_cost_that_the_provider_reports_stays_exact(store: TenantStore) -> None:
    end = ChatDelta(finish_reason=FinishReason.STOP, usage=USAGE, cost_usd=Decimal("0.25"))
    reply = await reply_to([*map(ChatDelta, CALL), end], store)
    assert (len(reply.message.tool_calls), reply.cost_usd) == (1, Decimal("0.25"))


async def test_secrets_in_written_arguments_are_redacted(store: TenantStore) -> None:
    secret = BY_FORMAT["anthropic"]
    reply = await reply_to(pieces(CALL.replace("Köln", f"in {secret} now")), store)
    assert called(reply) == [("weather", {"city": f"in sk{REDACTED} now"})]


async def test_marks_that_a_model_writes_into_its_call_are_removed(store: TenantStore) -> None:
    history = (
        QUESTION,
        Message(Role.ASSISTANT, "", (ToolCall("c1", "weather", "{}"),)),
        Message(Role.TOOL, '{"city": "Bad Tölz"}', tool_call_id="c1"),
    )
    for mark in (MARK, f"\\u{ord(MARK):04x}"):
        written = f'{{"name":{MARK}"weather",{MARK}"parameters":{MARK}{{"city":{MARK}"Bad{mark}Tölz"}}}}'
        assert called(await reply_to(pieces(written), store, *history)) == [("weather", {"city": "Bad Tölz"})]


async def test_a_stream_that_fails_inside_a_call_shows_nothing_of_it(store: TenantStore) -> None:
    async def broken(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        for character in CALL[:30]:
            yield ChatDelta(character)
        raise BackendUnavailable("The connection broke.")

    received: list[ChatDelta] = []
    with pytest.raises(UpstreamError):
        async for delta in calls_of(scripted_model(broken), marked()).chat(make_scope(store), question()):
            received.append(delta)
    assert received == []
