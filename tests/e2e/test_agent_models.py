"""Use the agents that Spass ships as models of the official OpenAI SDK."""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.e2e.conftest import Gateway

RESEARCHER, GUIDE = "agent/researcher", "agent/berlin-rag"
SUM = "What is 1791 * 17?"
GATE = "Wann wurde das Brandenburger Tor gebaut?"
DOCUMENTS = [
    {"id": "d1", "text": "Das Brandenburger Tor wurde von 1788 bis 1791 gebaut."},
    {"id": "d2", "text": "Der Tiergarten ist 210 Hektar groß."},
]


@pytest.fixture
def client(gateway: Gateway) -> Iterator[OpenAI]:
    with gateway.client("guided-token") as http:
        http.post("/a1/rag/indices/berlin-info/documents", json={"documents": DOCUMENTS}).raise_for_status()
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="guided-token", max_retries=0) as client:
        yield client


def stream(client: OpenAI, model: str, question: str) -> list[ChatCompletionChunk]:
    chunks = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], stream=True, stream_options={"include_usage": True}
    )
    return list(chunks)


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_agents_are_listed_and_retrieved_as_models(client: OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert {RESEARCHER, GUIDE, "agent/concise-de", "llama-4-scout"} <= set(models)
    assert client.models.retrieve(RESEARCHER) == models[RESEARCHER]
    assert models[RESEARCHER].model_dump()["kind"] == "chat"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("agent/nobody")
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize(("model", "question", "expected"), [(RESEARCHER, SUM, "30447"), (GUIDE, GATE, "1791")])
def test_a_stream_of_an_agent_is_its_blocking_answer(client: OpenAI, model: str, question: str, expected: str) -> None:
    chunks = stream(client, model, question)
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}])
    assert expected in text_of(chunks).replace(",", "").replace(".", "")
    assert text_of(chunks) == answer.choices[0].message.content
    assert {chunk.model for chunk in chunks} == {answer.model} == {model}
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > 3
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons == [*[None] * (len(reasons) - 1), "stop"]
    assert answer.choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert answer.usage is not None
    assert chunks[-1].usage.model_dump() == answer.usage.model_dump()


def test_the_sdk_reads_the_refusal_of_a_parameter(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model=RESEARCHER,
            messages=[{"role": "user", "content": SUM}],
            tools=[{"type": "function", "function": {"name": "search"}}],
        )
    assert (error.value.code, error.value.param) == ("invalid_request", "tools")
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model=RESEARCHER, messages=[{"role": "user", "content": SUM}], response_format={"type": "json_object"}, stream=True
        )
    assert error.value.param == "response_format"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="agent/nobody", messages=[{"role": "user", "content": SUM}], stream=True)
    assert missing.value.code == "model_not_found"
