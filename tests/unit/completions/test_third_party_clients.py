"""Fields that OpenAI does not define: drop unknown keys of nested objects, accept some parameters without effect, refuse others.

Each conversation is what one client sends in the second turn of a tool loop, according to its documentation or source.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spass.completions.chat_request import ChatCompletionRequest
from spass.completions.embeddings import EmbeddingsRequest
from spass.core.messages import Message, Role, ToolCall
from spass.models.types import ChatRequest

Json = Any

ARGUMENTS = '{"city": "Berlin"}'
FUNCTION_JSON = {"name": "weather", "arguments": ARGUMENTS}
CALL_JSON = {"id": "call_1", "type": "function", "function": FUNCTION_JSON}
TOOL_JSON = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False},
    },
}
QUESTION = Message(Role.USER, "How is the weather?")
TOOL_CALL = Message(Role.ASSISTANT, "", (ToolCall("call_1", "weather", ARGUMENTS),))
TOOL_RESULT = Message(Role.TOOL, "sunny", tool_call_id="call_1")

USER_JSON = {"role": "user", "content": "How is the weather?"}
RESULT_JSON = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}

SECOND_TURNS: dict[str, list[Json]] = {
    "openai-python": [
        USER_JSON,
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None, "function_call": None,
         "tool_calls": [CALL_JSON]},
        RESULT_JSON,
    ],
    "litellm": [
        USER_JSON,
        {"content": None, "role": "assistant", "tool_calls": [{"index": 0, **CALL_JSON}],
         "function_call": None, "provider_specific_fields": {"refusal": None, "citations": []}, "annotations": [],
         "reasoning_content": "The user asks for the weather.",
         "thinking_blocks": [{"type": "thinking", "thinking": "The user asks …", "signature": "c2ln"}]},
        {"tool_call_id": "call_1", "role": "tool", "content": "sunny"},
    ],
    "mini-swe-agent": [
        {**USER_JSON, "timestamp": 1790000000.5, "extra": {"source": "template"}},
        {"role": "assistant", "tool_calls": [CALL_JSON], "timestamp": 1790000001.5,
         "extra": {"response": {"id": "x"}, "cost": 0.1, "actions": [{"command": "ls"}]}},
        {**RESULT_JSON, "extra": {"returncode": 0}, "timestamp": 1790000002.5},
    ],
    "BFCL, multi-turn": [
        USER_JSON,
        {"role": "assistant", "content": None, "refusal": None, "annotations": None, "reasoning": "…", "reasoning_details": [],
         "tool_calls": [{**CALL_JSON, "index": 0}]},
        RESULT_JSON,
    ],
    "LangChain JS": [
        {"id": "msg_1", **USER_JSON},
        {"id": "msg_2", "role": "assistant", "content": "", "tool_calls": [{**CALL_JSON, "index": 0, "parsed_arguments": {}}]},
        {"id": "msg_3", **RESULT_JSON, "artifact": None},
    ],
    "AI SDK": [
        {"role": "user", "content": [{"type": "text", "text": "How is the weather?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "", "reasoning_content": "Look it up.",
         "tool_calls": [{**CALL_JSON, "extra_content": {"google": {"thought_signature": "c2ln"}}}]},
        RESULT_JSON,
    ],
    "an empty list as content": [USER_JSON, {"role": "assistant", "content": [], "tool_calls": [CALL_JSON]}, RESULT_JSON],
    "no content": [USER_JSON, {"role": "assistant", "tool_calls": [CALL_JSON]}, {**RESULT_JSON, "is_error": False}],
}  # fmt: skip


def parse(**fields: Json) -> ChatRequest:
    return ChatCompletionRequest.model_validate({"model": "small", "messages": [USER_JSON], **fields}).chat_request()


@pytest.mark.parametrize("client", SECOND_TURNS)
def test_unknown_fields_of_known_clients_are_dropped(client: str) -> None:
    request = parse(messages=SECOND_TURNS[client], tools=[{**TOOL_JSON, "cache_control": {"type": "ephemeral"}}])
    assert request == parse(messages=SECOND_TURNS["openai-python"], tools=[TOOL_JSON])
    assert request.messages == (QUESTION, TOOL_CALL, TOOL_RESULT)


ACCEPTED_PARAMETERS = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_control",
]


@pytest.mark.parametrize("value", [None, True, 5, "text", ["list"], {"user_id": {"nested": 1}}])
@pytest.mark.parametrize("name", ACCEPTED_PARAMETERS)
def test_an_accepted_parameter_may_have_any_value(name: str, value: Json) -> None:
    request = parse(**{name: value})
    # Only "user" has an effect: a text is forwarded to the backend.
    assert request.extra == ({"user": value} if name == "user" and isinstance(value, str) else {})
    EmbeddingsRequest.model_validate({"model": "small", "input": "x", name: value})


@pytest.mark.parametrize(
    "body", [{"model": "m", "messages": [USER_JSON], "inputt": 1}, {"model": "m", "messages": [USER_JSON], "x" * 10**6: 1}]
)
def test_the_error_for_an_unknown_parameter_has_its_name_as_loc(body: Json) -> None:
    unknown = [*body][-1]
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate(body)
    assert [error["loc"] for error in caught.value.errors()] == [(unknown,)]


def test_a_misspelt_parameter_of_embeddings_gets_a_suggestion() -> None:
    with pytest.raises(ValidationError, match="unknown parameter; did you mean 'encoding_format'"):
        EmbeddingsRequest.model_validate({"model": "m", "input": "x", "encodingformat": "float"})


def test_each_of_fifty_unknown_parameters_is_reported() -> None:
    with pytest.raises(ValidationError) as caught:
        EmbeddingsRequest.model_validate({"model": "m", "input": "x", **{f"dimension{number}": 1 for number in range(50)}})
    assert caught.value.error_count() == 50


FULL_BODY: dict[str, Json] = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "https://x.example"}}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL_JSON]},
        RESULT_JSON,
    ],
    "tools": [TOOL_JSON],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
    "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip


def nested_objects(value: Json, *, top: bool = True) -> Iterator[dict[str, Json]]:
    """Yield all objects in ``value`` except JSON Schemas, because their keys may have any name."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict) and not top:
        yield value
    for name, child in children:
        if name not in ("parameters", "schema"):
            yield from nested_objects(child, top=False)


@given(st.data())
def test_unknown_keys_of_nested_objects_are_ignored(data: st.DataObject) -> None:
    body = copy.deepcopy(FULL_BODY)
    for nested in list(nested_objects(body)):
        values: st.SearchStrategy[Json] = (
            st.none() | st.booleans() | st.text(max_size=3) | st.just([]) | st.just({"type": "ephemeral"})
        )
        keys = st.sampled_from(
            ["id_", "cache_control", "provider_specific_fields", "reasoning_content", "x", "extra_content", ""]
        )
        nested.update(data.draw(st.dictionaries(keys, values, max_size=2)))
    assert parse(**body) == parse(**FULL_BODY)
