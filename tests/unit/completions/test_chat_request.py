"""Validation and translation of the body of a chat request."""

from typing import Any

import pytest
from pydantic import ValidationError

from spass.completions.chat_request import ChatCompletionRequest
from spass.core.messages import Image, Message, Role, ToolCall
from spass.models.types import NamedTool

ASK = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def parse(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({**ASK, **fields})


def validation_errors(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        parse(**fields)
    return "\n".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in caught.value.errors())


def test_messages_of_every_role_are_translated() -> None:
    request = parse(
        messages=[
            {"role": "system", "content": "S"},
            {"role": "developer", "content": [{"type": "text", "text": "D"}, {"type": "text", "text": "E"}]},
            {"role": "user", "content": "U", "name": "anna"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "4"},
            {"role": "assistant", "content": "A"},
        ]
    )
    assert request.chat_request().messages == (
        Message(Role.SYSTEM, "S"),
        Message(Role.SYSTEM, "D\nE"),
        Message(Role.USER, "U", name="anna"),
        Message(Role.ASSISTANT, "", (ToolCall("call_1", "add", "{}"),)),
        Message(Role.TOOL, "4", tool_call_id="call_1"),
        Message(Role.ASSISTANT, "A"),
    )


def test_an_answer_can_be_sent_back_as_openais_sdk_dumps_it() -> None:
    dumped = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [CALL],
    }
    messages = [ASK["messages"][0], dumped, {"role": "tool", "tool_call_id": "call_1", "content": "4"}]
    assert parse(messages=messages).chat_request().messages[1].tool_calls[0].id == "call_1"


def test_openais_parameters_are_translated() -> None:
    request = parse(
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "add"}},
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        stop="END",
        seed=7,
        temperature=1,
        top_p=0.5,
        max_completion_tokens=9,
        presence_penalty=0.5,
        logit_bias={"5": -100},
        user="u",
        parallel_tool_calls=False,
        metadata={"a": "b"},
        store=False,
        n=1,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=False,
    )
    translated = request.chat_request()
    assert translated.tool_choice == NamedTool("add")
    assert (translated.stop, translated.seed, translated.temperature, translated.top_p, translated.max_tokens) == (
        ("END",),
        7,
        1.0,
        0.5,
        9,
    )
    assert translated.response_format == {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert translated.extra == {
        "presence_penalty": 0.5,
        "logit_bias": {"5": -100.0},
        "user": "u",
        "parallel_tool_calls": False,
    }
    assert (translated.stream, request.include_usage) == (True, True)


def test_strict_and_the_name_of_a_message_are_translated() -> None:
    function = {"name": "add", "parameters": {"type": "object"}}
    tools = [
        {"type": "function", "function": {**function, "name": f"add_{strict}", "strict": strict}}
        for strict in (True, False, None)
    ]
    messages = [
        {"role": "system", "name": "rules", "content": "x"},
        {"role": "user", "name": "anna", "content": "x"},
        {"role": "assistant", "name": "bot", "tool_calls": [CALL]},
        {"role": "tool", "name": "add", "tool_call_id": "call_1", "content": "4"},
        {"role": "user", "content": "x"},
    ]
    translated = parse(messages=messages, tools=tools).chat_request()
    assert [tool.strict for tool in translated.tools] == [True, False, None]
    assert [message.name for message in translated.messages] == ["rules", "anna", "bot", "add", None]


def test_null_is_treated_as_absent() -> None:
    optional = {name: None for name, field in ChatCompletionRequest.model_fields.items() if not field.is_required()}
    assert parse(**optional).chat_request() == parse().chat_request()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temprature": 1}, "temprature: unknown parameter; did you mean 'temperature'?"),
        (
            {"top_k": 1, "cache_controls": {}},
            "top_k: unknown parameter; did you mean 'top_p'?\ncache_controls: unknown parameter; did you mean 'cache_control'?",
        ),
        ({"": 1}, ": unknown parameter"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "does not match any of the expected tags"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.user.content: Input should be a valid string"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, 'a content part is {"type": "text"'),
        ({"messages": [{"role": "user", "content": ["x"]}]}, 'a content part is {"type": "text"'),
        (
            {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "https://x.example"}}]}]},
            "messages.0.system.content: parts of type 'image_url' are not supported here by this gateway; send text",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "file"}]}]}, "parts of type 'file' are not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "mine"}]}]}, "parts of this type are not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages.0.user.content: parts of type 'input_audio' are not supported here by this gateway; send text or image_url",
        ),
        ({"messages": [{"role": "assistant"}]}, "an assistant message has content or tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "tool_calls: Input should be a valid list"),
        ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages.0.user.name: Input should be a valid string"),
        ({"model": ""}, "model: String should have at least 1 character"),
        ({"temperature": 2.1}, "temperature: Input should be less than or equal to 2"),
        ({"temperature": "1"}, "temperature: Input should be a valid number"),
        ({"temperature": float("nan")}, "temperature: Input should be a finite number"),
        ({"top_p": -0.1}, "top_p: Input should be greater than or equal to 0"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"max_tokens": 2**31}, "max_tokens: Input should be less than"),
        ({"max_completion_tokens": 10**40}, "max_completion_tokens: Input should be less than"),
        ({"max_tokens": True}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens: differs from max_tokens"),
        ({"n": 2}, "n: must be 1: one answer at a time"),
        ({"stop": ["a"] * 5}, "stop: List should have at most 4 items"),
        ({"stop": ""}, "stop.0: String should have at least 1 character"),
        ({"seed": 2**63}, "seed: Input should be less than"),
        ({"logprobs": True}, "logprobs: not supported by this gateway"),
        ({"functions": [{}]}, "functions: not supported by this gateway; use tools"),
        ({"modalities": ["audio"]}, "modalities.0: Input should be 'text'"),
        ({"tools": [TOOL, TOOL]}, "tools: two tools have the same name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name: String should match pattern"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type: Input should be 'function'"),
        ({"tool_choice": "required"}, "tool_choice: 'required' needs tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "not among the tools"),
        ({"response_format": {"type": "json_schema"}}, "json_schema belongs to type 'json_schema'"),
        ({"stream_options": {"include_usage": True}}, "stream_options: is allowed only when stream is true"),
    ],
)
def test_an_invalid_field_is_refused_with_its_path(fields: dict[str, Any], expected: str) -> None:
    assert expected in validation_errors(**fields)


PNG = "data:image/png;base64,iVBORw0KGgo="


def message_with(*parts: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": list(parts), "name": "anna"}]


def picture(url: object, **fields: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def test_texts_and_images_keep_their_order() -> None:
    far = "https://example.com/cat.png?size=1"
    parts = [{"type": "text", "text": "This"}, picture(far, detail="low"), {"type": "text", "text": "or that?"}, picture(PNG)]
    assert parse(messages=message_with(*parts)).chat_request().messages == (
        Message(Role.USER, "This\nor that?", name="anna", parts=("This", Image(far, "low"), "or that?", Image(PNG))),
    )
    alone = parse(messages=message_with(picture(PNG, detail=None))).chat_request().messages
    assert alone == (Message(Role.USER, "", name="anna", parts=(Image(PNG),)),)


def test_the_prefix_of_a_data_url_is_normalized() -> None:
    (message,) = parse(messages=message_with(picture("DATA:image/JPG;base64,/9j/"))).chat_request().messages
    assert message.parts == (Image("data:image/jpeg;base64,/9j/"),)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (picture("http://example.com/cat.png"), "a picture's url is an https: address or a data: URL"),
        (picture("https://"), "an https: address"),
        (picture("https://a b"), "an https: address"),
        (picture("https://key@example.com/"), "an https: address"),
        (picture("file:///etc/passwd"), "an https: address"),
        (picture("https://example.com/" + "a" * 8192), "an https: address"),
        (picture("data:image/svg+xml;base64,PHN2Zy8+"), "where … is png, jpeg, gif or webp"),
        (picture("data:image/png,abcd"), "begins with data:image/…;base64,"),
        (picture("data:image/png;base64,"), "does not hold valid base64"),
        (picture("data:image/png;base64,abc"), "does not hold valid base64"),
        (picture("data:image/png;base64,ab\ncd"), "does not hold valid base64"),
        (picture("data:image/png;base64,äöüß"), "does not hold valid base64"),
        (picture(5), 'a picture is {"type": "image_url"'),
        (picture(PNG, detail="most"), "auto, low or high"),
        (picture(PNG, detail=[]), "auto, low or high"),
        ({"type": "image_url", "image_url": PNG}, "a picture is"),
        ({"type": "image_url"}, "a picture is"),
        ({"type": ["image_url"]}, "a content part is"),
    ],
)
def test_an_invalid_image_is_refused_with_its_path(part: dict[str, object], expected: str) -> None:
    errors = validation_errors(messages=message_with(part))
    assert errors.startswith("messages.0.user.content: ")
    assert expected in errors


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (["user", "tool"], "message 1: a tool message must answer a tool call"),
        (["user", "call", "tool", "tool"], "message 3: a tool message must answer a tool call"),
        (["user", "call", "user"], "message 2: the tool calls before this message are not all answered"),
        (["user", "call"], "message 1: the tool calls of the last messages are not all answered"),
    ],
)
def test_every_tool_call_must_be_answered_once_and_in_order(roles: list[str], expected: str) -> None:
    shapes: dict[str, object] = {
        "user": {"role": "user", "content": "x"},
        "call": {"role": "assistant", "tool_calls": [CALL]},
        "tool": {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    }
    assert expected in validation_errors(messages=[shapes[role] for role in roles])
