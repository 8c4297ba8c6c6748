"""Chat and embeddings from OpenAI's request to OpenAI's answer, through the real pipeline."""

import base64
from array import array
from typing import Any, cast

import pytest
from pydantic import ValidationError

from spass.agents.registry import AgentRegistry
from spass.completions.agent_models import AgentModels
from spass.completions.chat_request import ChatCompletionRequest
from spass.completions.embeddings import EmbeddingsRequest
from spass.completions.service import Completions
from spass.core.errors import InvalidRequest, ModelNotAllowed, ModelNotFound, UpstreamError
from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.errors import BackendUnavailable
from spass.models.types import ChatDelta
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.model import ScriptedModel
from tests.unit.calls.scripted_provider import CONFIG, audit_of, calls_of, make_scope, scripted_model
from tests.unit.completions.chunk_collector import collect_chunks, read_chunks
from tests.unit.completions.no_services import no_agents, no_toolbox

pytestmark = pytest.mark.anyio

ANSWER = [
    ChatDelta("Let me "),
    ChatDelta("see."),
    ChatDelta(tool_calls=(ToolCallDelta(0, "call_1", "add", '{"a"'),)),
    ChatDelta(tool_calls=(ToolCallDelta(0, arguments=":1}"),)),
    ChatDelta(finish_reason=FinishReason.TOOL_CALLS, usage=TokenUsage(10, 5)),
]


def completions(provider: ScriptedModel) -> Completions:
    return Completions(calls_of(provider), CONFIG, Cascade(CONFIG), no_toolbox, no_agents)


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"model": "small", "messages": [{"role": "user", "content": "1 + 3?"}], **fields})


def embeddings(**fields: Any) -> EmbeddingsRequest:
    return EmbeddingsRequest.model_validate({"model": "mini-embed", "input": "x", **fields})


async def test_the_blocking_answer_is_the_collected_stream(store: TenantStore) -> None:
    service = completions(scripted_model(ANSWER))
    blocking = await service.complete(make_scope(store), chat())
    streamed = collect_chunks(read_chunks([frame async for frame in service.stream(make_scope(store), chat(stream=True))]))
    assert streamed.model_copy(update={"id": blocking.id, "created": blocking.created}) == blocking
    assert blocking.object == "chat.completion"
    assert blocking.usage.to_dict() == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "cost": 0.0000125,
        "cost_details": {"eur": "0.00001125", "usd": "0.0000125", "source": "catalog", "sub_calls": 1},
    }


async def test_a_stream_has_a_longer_deadline_than_a_blocking_answer(store: TenantStore) -> None:
    provider, scope = scripted_model(ANSWER), make_scope(store)
    service = completions(provider)
    await service.complete(scope, chat())
    assert [frame async for frame in service.stream(scope, chat(stream=True))]
    seconds = [context.deadline.remaining() for context in provider.contexts]
    assert seconds == [pytest.approx(270, abs=20), pytest.approx(840, abs=20)]
    assert scope.tally.total.sub_calls == 2


async def test_a_refused_request_yields_no_chunk(store: TenantStore) -> None:
    agents = AgentModels(cast(Any, "no engine: no agent runs"), lambda: AgentRegistry([]))
    service = Completions(calls_of(scripted_model()), CONFIG, Cascade(CONFIG), no_toolbox, lambda: agents)
    with pytest.raises(ModelNotFound):
        await anext(service.stream(make_scope(store), chat(model="absent", stream=True)))
    with pytest.raises(ModelNotAllowed):
        await anext(service.stream(make_scope(store, allowed=["large"]), chat(stream=True)))
    assert not await audit_of(store)


async def test_a_model_that_fails_before_its_first_delta_yields_no_chunk(store: TenantStore) -> None:
    service = completions(scripted_model(BackendUnavailable("down")))
    with pytest.raises(UpstreamError):
        await anext(service.stream(make_scope(store), chat(stream=True)))


async def test_an_abandoned_stream_closes_the_model_and_is_audited(store: TenantStore) -> None:
    provider = scripted_model(ANSWER)
    stream = completions(provider).stream(make_scope(store), chat(stream=True))
    await anext(stream)
    await stream.aclose()
    assert provider.closed == 1
    (record,) = await audit_of(store)
    assert record["status"] == "cancelled"


async def test_embeddings_are_numbers_or_base64_of_the_same_numbers(store: TenantStore) -> None:
    service = completions(scripted_model())
    numbers = (await service.embed(make_scope(store), embeddings(input=["a", "bb"]))).to_dict()
    encoded = await service.embed(make_scope(store), embeddings(input=["a", "bb"], encoding_format="base64", dimensions=3))
    assert numbers["data"] == [
        {"object": "embedding", "index": 0, "embedding": [1.0, 1.0, 0.5]},
        {"object": "embedding", "index": 1, "embedding": [2.0, 1.0, 0.5]},
    ]
    assert [list(array("f", base64.b64decode(str(entry.embedding)))) for entry in encoded.data] == [
        [1.0, 1.0, 0.5],
        [2.0, 1.0, 0.5],
    ]
    assert (numbers["object"], numbers["model"]) == ("list", "mini-embed")
    assert numbers["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


async def test_embeddings_refuse_forbidden_models_and_other_dimensions(store: TenantStore) -> None:
    service = completions(scripted_model())
    with pytest.raises(ModelNotAllowed):
        await service.embed(make_scope(store, allowed=["small"]), embeddings())
    with pytest.raises(InvalidRequest, match="3 dimensions"):
        await service.embed(make_scope(store), embeddings(dimensions=2))
    with pytest.raises(InvalidRequest):
        await service.embed(make_scope(store), embeddings(model="small"))


async def test_too_many_texts_are_refused_with_the_name_of_the_setting(store: TenantStore) -> None:
    provider = scripted_model()
    service = completions(provider)
    await service.embed(make_scope(store), embeddings(input=["a"] * 256))
    with pytest.raises(InvalidRequest, match=r"257 texts; this gateway takes at most 256 .* limits\.embedding_inputs") as caught:
        await service.embed(make_scope(store), embeddings(input=["a"] * 257))
    assert caught.value.param == "input"
    assert sum(len(request.texts) for request in provider.embeddings) == 256


async def test_many_texts_are_split_for_the_provider_and_keep_their_order(store: TenantStore) -> None:
    config = GatewayConfig.model_validate({**CONFIG.model_dump(exclude_unset=True), "limits": {"embedding_inputs": 2048}})
    provider = scripted_model()
    service = Completions(calls_of(provider, config), config, Cascade(config), no_toolbox, no_agents)
    answer = await service.embed(make_scope(store), embeddings(input=["a" * (1 + number % 97) for number in range(2048)]))
    data: Any = answer.to_dict()["data"]
    assert [(entry["index"], entry["embedding"][0]) for entry in data] == [(number, 1 + number % 97) for number in range(2048)]
    assert {len(request.texts) for request in provider.embeddings} == {32}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "text 0 is empty"),
        (["a", ""], "text 1 is empty"),
        ([], "is empty; send at least one text"),
        (["a"] * 2049, "holds 2049 texts; limits.embedding_inputs allows at most 2048"),
        ([1, 2, 3], "lists of token numbers are not supported; send text"),
        ([[1, 2], [3]], "lists of token numbers are not supported; send text"),
        ([None], "text 0 is not a text"),
        ({"text": "a"}, "must be a text or a list of texts"),
        (True, "must be a text or a list of texts"),
    ],
)
def test_an_invalid_input_is_refused_with_the_reason(value: object, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        embeddings(input=value)
