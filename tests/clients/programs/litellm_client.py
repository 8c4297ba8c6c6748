"""Call the gateway through LiteLLM: its documented two-turn tool loop, blocking, streamed and async, and embeddings."""

import asyncio
import json
import os
from typing import Any

import litellm

MODEL = f"openai/{os.environ['CHAT_MODEL']}"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_current_weather",
            "description": "Get the current weather in a given location",
            "parameters": {
                "type": "object",
                "properties": {"location": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
                "required": ["location"],
            },
        },
    }
]


def answer_calls(messages: list[Any], message: Any) -> None:
    """Append the assistant's message as LiteLLM returns it, and a result for each call."""
    assert [call.function.name for call in message.tool_calls] == ["get_current_weather"], message
    assert json.loads(message.tool_calls[0].function.arguments)["location"] == "Berlin"
    messages.append(message)
    for call in message.tool_calls:
        messages.append({"tool_call_id": call.id, "role": "tool", "name": call.function.name, "content": '{"celsius": 11}'})


def run_tool_loop(stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in 'Berlin'?"}]
    for turn in (1, 2):
        options = {"stream_options": {"include_usage": True}} if stream else {}
        response: Any = litellm.completion(
            model=MODEL, messages=messages, tools=TOOLS, tool_choice="auto", stream=stream, max_retries=0, **options
        )
        if stream:
            response = litellm.stream_chunk_builder(list(response), messages=messages)
        assert response.usage.total_tokens > 0
        message = response.choices[0].message
        if turn == 1:
            answer_calls(messages, message)
        else:
            assert message.content.startswith("Hello!"), message


async def call_async() -> None:
    response: Any = await litellm.acompletion(model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_retries=0)
    assert response.choices[0].message.content.startswith("Hello!")


run_tool_loop(stream=False)
run_tool_loop(stream=True)
asyncio.run(call_async())
vectors = litellm.embedding(model=f"openai/{os.environ['EMBEDDING_MODEL']}", input=["one", "two"], encoding_format="float")
assert [len(row["embedding"]) for row in vectors.data] == [8, 8]
