"""Use the official OpenAI SDK with a running gateway."""

import json
import math
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

CHAT = "llama-4-scout"
EMBEDDING = "all-minilm-l6-v2"
UNSERVED = "text-embedding-3-small"
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "My favourite sport is tennis."},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "Which sport is my favourite?"},
]
CALCULATOR: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


@pytest.fixture
def client(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{base_url}/v1", api_key="demo-token", max_retries=0) as client:
        yield client


def test_a_blocking_completion_returns_text_and_usage(client: OpenAI) -> None:
    completion = client.chat.completions.create(model=CHAT, messages=QUESTION, temperature=0.2, max_tokens=50, seed=1)
    choice = completion.choices[0]
    assert choice.message.content is not None
    assert "tennis" in choice.message.content.lower()
    assert choice.finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens > 0
    assert completion.model == CHAT


def test_the_raw_response_has_request_id_and_cost_headers(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=CHAT, messages=QUESTION)
    assert raw.headers["SPASS-Request-Id"].startswith("req_")
    assert float(raw.headers["SPASS-Cost-Usd"]) >= 0
    assert raw.headers["SPASS-Cost-Sub-Calls"] == "1"
    assert raw.parse().choices[0].message.role == "assistant"


def test_a_stream_is_the_blocking_answer_in_pieces(client: OpenAI) -> None:
    blocking = client.chat.completions.create(model=CHAT, messages=QUESTION)
    stream = client.chat.completions.create(model=CHAT, messages=QUESTION, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == blocking.choices[0].message.content
    assert len(chunks) > 3
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert blocking.usage is not None
    assert chunks[-1].usage.total_tokens == blocking.usage.total_tokens
    stream_usage, blocking_usage = chunks[-1].usage.model_dump(), blocking.usage.model_dump()
    assert stream_usage["cost"] == blocking_usage["cost"] == float(stream_usage["cost_details"]["usd"])
    assert set(stream_usage["cost_details"]) == set(blocking_usage["cost_details"]) == {"eur", "usd", "source", "sub_calls"}


@pytest.mark.parametrize("streaming", [False, True])
def test_a_client_receives_a_tool_call_and_sends_its_result(client: OpenAI, streaming: bool) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 1791 * 17?"}]
    if streaming:
        with client.chat.completions.stream(model=CHAT, messages=messages, tools=[CALCULATOR]) as stream:
            completion = stream.get_final_completion()
        call = completion.choices[0].message.tool_calls
        reason = completion.choices[0].finish_reason
    else:
        answer = client.chat.completions.create(model=CHAT, messages=messages, tools=[CALCULATOR])
        call = answer.choices[0].message.tool_calls  # type: ignore[assignment]
        reason = answer.choices[0].finish_reason
    assert call
    assert reason == "tool_calls"
    assert call[0].type == "function"
    assert call[0].function.name == "calculator"
    assert "17" in json.loads(call[0].function.arguments)["expression"]
    messages += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": call[0].id,
                    "type": "function",
                    "function": {"name": call[0].function.name, "arguments": call[0].function.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": call[0].id, "content": "30447"},
    ]
    final = client.chat.completions.create(model=CHAT, messages=messages, tools=[CALCULATOR])
    assert "30447" in (final.choices[0].message.content or "")


def test_embeddings_in_both_encodings_are_the_same_vectors(client: OpenAI) -> None:
    texts = ["Wo ist der größte Park?", "Der Tiergarten ist der größte Park."]
    default = client.embeddings.create(model=EMBEDDING, input=texts)
    plain = client.embeddings.create(model=EMBEDDING, input=texts, encoding_format="float")
    assert [item.index for item in default.data] == [0, 1]
    for item, plain_item in zip(default.data, plain.data, strict=True):
        assert len(item.embedding) == 384
        assert item.embedding == pytest.approx(plain_item.embedding, abs=1e-6)
        assert math.hypot(*item.embedding) == pytest.approx(1, abs=1e-5)
    assert default.usage.total_tokens > 0
    single = client.embeddings.create(model=EMBEDDING, input=texts[0])
    assert single.data[0].embedding == pytest.approx(default.data[0].embedding, abs=1e-5)


def test_models_are_listed_and_looked_up(client: OpenAI) -> None:
    kinds = {model.id: model.model_dump()["kind"] for model in client.models.list()}
    assert (kinds[CHAT], kinds[EMBEDDING]) == ("chat", "embedding")
    assert client.models.retrieve(CHAT) in list(client.models.list())
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("no/such/model")
    assert error.value.code == "model_not_found"


def test_a_model_without_a_backend_is_not_listed_and_its_call_is_not_retried(base_url: str) -> None:
    requests: list[object] = []
    http = openai.DefaultHttpxClient(event_hooks={"request": [requests.append]})
    with OpenAI(base_url=f"{base_url}/v1", api_key="demo-token", max_retries=2, http_client=http) as client:
        assert UNSERVED not in {model.id for model in client.models.list()}
        requests.clear()
        with pytest.raises(openai.InternalServerError) as error:
            client.embeddings.create(model=UNSERVED, input="text")
    assert error.value.code == "no_backend_available"
    assert len(requests) == 1


def test_a_wrong_token_is_an_authentication_error(client: OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as error:
        client.with_options(api_key="wrong").chat.completions.create(model=CHAT, messages=QUESTION)
    assert error.value.code == "invalid_token"


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    assert error.value.code == "model_not_found"


def test_an_invalid_value_is_a_bad_request_that_names_the_field(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=CHAT, messages=QUESTION, temperature=9)
    assert error.value.code == "invalid_request"
    assert "temperature" in json.dumps(error.value.body)


def test_a_body_that_is_too_large_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "x" * 5_000_000}])
    assert error.value.status_code == 413


def test_a_repeated_idempotency_key_replays_the_answer(client: OpenAI) -> None:
    headers = {"Idempotency-Key": "sdk-once"}
    first = client.chat.completions.with_raw_response.create(model=CHAT, messages=QUESTION, extra_headers=headers)
    replay = client.chat.completions.with_raw_response.create(model=CHAT, messages=QUESTION, extra_headers=headers)
    assert replay.headers["Idempotency-Replayed"] == "true"
    assert replay.parse().id == first.parse().id
    assert replay.headers["SPASS-Cost-Usd"] == first.headers["SPASS-Cost-Usd"]
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.chat.completions.create(model=CHAT, messages=QUESTION, seed=7, extra_headers=headers)
    assert error.value.code == "idempotency_key_reused"
    first_stream = client.chat.completions.create(
        model=CHAT, messages=QUESTION, stream=True, extra_headers={"Idempotency-Key": "sdk-stream"}
    )
    first_contents = [chunk.choices[0].delta.content for chunk in first_stream if chunk.choices]
    replayed_stream = client.chat.completions.create(
        model=CHAT, messages=QUESTION, stream=True, extra_headers={"Idempotency-Key": "sdk-stream"}
    )
    replayed_contents = [chunk.choices[0].delta.content for chunk in replayed_stream if chunk.choices]
    assert "".join(filter(None, replayed_contents)) == "".join(filter(None, first_contents))
