"""Use the official OpenAI SDK as a tenant whose every chat gets server tools."""

from collections.abc import Iterator
from typing import Final, cast

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.conftest import Gateway
from tests.e2e.test_openai_sdk import CALCULATOR, CHAT

QUESTION: Final[list[ChatCompletionMessageParam]] = [{"role": "user", "content": "What is 1791 * 17?"}]


@pytest.fixture
def client(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="tooled-token", max_retries=0) as client:
        yield client


def test_the_gateway_runs_a_server_tool_and_returns_the_final_answer(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=CHAT, messages=QUESTION)
    (choice,) = raw.parse().choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert "30447" in (choice.message.content or "").replace(",", "").replace(".", "")
    assert raw.headers["SPASS-Cost-Sub-Calls"] == "2"


def test_a_stream_with_a_server_tool_is_one_message(client: OpenAI) -> None:
    with client.chat.completions.stream(model=CHAT, messages=QUESTION, stream_options={"include_usage": True}) as stream:
        completion = stream.get_final_completion()
    assert "30447" in (completion.choices[0].message.content or "").replace(",", "").replace(".", "")
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.model_dump()["cost_details"]["sub_calls"] == 2


def test_a_tool_of_the_client_has_priority_over_a_server_tool_of_the_same_name(client: OpenAI) -> None:
    first = client.chat.completions.create(model=CHAT, messages=QUESTION, tools=[CALCULATOR]).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls is not None
    (call,) = first.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "calculator"
    assistant_message = cast("ChatCompletionMessageParam", first.message.to_dict())
    tool_message: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": call.id, "content": '{"result": 12345}'}
    second = client.chat.completions.create(model=CHAT, messages=[*QUESTION, assistant_message, tool_message], tools=[CALCULATOR])
    assert "12345" in (second.choices[0].message.content or "").replace(",", "").replace(".", "")
