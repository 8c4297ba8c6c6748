"""Our requests to Bedrock match the description of the service that botocore contains."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel, StructureShape
from botocore.parsers import create_parser
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import Image, Json, Message, Role, ToolCall, ToolSpec
from spass.models.providers.bedrock_wire import converse_body
from spass.models.types import ChatRequest, NamedTool, ToolChoice
from tests.unit.models.providers.test_bedrock import BLOCKING, STREAM


@cache
def operation(name: str) -> OperationModel:
    description = Loader().load_service_model("bedrock-runtime", "service-2")
    return ServiceModel(description, "bedrock-runtime").operation_model(name)


def input_shape_of(name: str) -> StructureShape:
    shape = operation(name).input_shape
    assert shape is not None
    return shape


def output_shape_of(name: str) -> StructureShape:
    shape = operation(name).output_shape
    assert shape is not None
    return shape


def validation_report(body: dict[str, Json]) -> str:
    """Return the errors that botocore finds in the body of a request, or an empty text."""
    sent: Any = json.loads(json.dumps({**body, "modelId": "x"}))
    report: str = ParamValidator().validate(sent, input_shape_of("ConverseStream")).generate_report()
    return report


words = st.text(" ab\n", max_size=4)
calls = st.lists(
    st.builds(ToolCall, st.text("ab.", max_size=3), st.text("ab.", min_size=1, max_size=3), st.just('{"a": [1, null]}'))
)
parts = st.lists(st.one_of(words, st.just(Image("data:image/jpeg;base64,/9j/"))), min_size=1, max_size=3)
messages = st.one_of(
    st.builds(Message, st.sampled_from([Role.SYSTEM, Role.USER]), words),
    st.builds(lambda content: Message(Role.USER, "", parts=tuple(content)), parts),
    st.builds(lambda text, tool_calls: Message(Role.ASSISTANT, text, tuple(tool_calls)), words, calls),
    st.builds(lambda text, name: Message(Role.TOOL, text, tool_call_id=name), words, st.text("ab.", max_size=3)),
)
tools = st.sampled_from(
    [(), (ToolSpec("a", "", {"type": "object"}), ToolSpec("b", "Does b.", {"type": "object", "properties": {}}, strict=True))]
)
choices: st.SearchStrategy[ToolChoice | None] = st.sampled_from([None, "auto", "none", "required", NamedTool("a")])
formats: st.SearchStrategy[dict[str, Json] | None] = st.sampled_from(
    [
        None,
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "description": "y", "schema": {"type": "object"}, "strict": True}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    ]
)
requests = st.builds(
    ChatRequest,
    st.just("m"),
    st.lists(messages, min_size=1, max_size=6).map(tuple),
    tools=tools,
    tool_choice=choices,
    temperature=st.one_of(st.none(), st.floats(0, 2)),
    top_p=st.one_of(st.none(), st.floats(0, 1)),
    max_tokens=st.one_of(st.none(), st.integers(1, 9)),
    stop=st.lists(st.text(min_size=1, max_size=2), max_size=4).map(tuple),
    response_format=formats,
    extra=st.sampled_from([{}, {"reasoning_effort": "high"}]),
)


@given(requests)
def test_the_body_of_any_request_matches_the_model_of_the_service(request: ChatRequest) -> None:
    body = converse_body(request)
    assert validation_report(body) == ""
    assert body["messages"]


def test_an_invalid_body_does_not_match_the_model_of_the_service() -> None:
    assert "unknown" in validation_report({"messages": [{"role": "user", "content": [{"txt": "Hi"}]}]}).lower()


def events() -> Iterator[dict[str, Any]]:
    """Yield the events that botocore parses from ``STREAM``."""
    shape = output_shape_of("ConverseStream").members["stream"]
    buffer = EventStreamBuffer()
    buffer.add_data(STREAM)
    for message in buffer:
        yield create_parser("rest-json")._event_stream_parser.parse(message.to_response_dict(), shape)  # type: ignore[attr-defined]


def test_the_streams_of_our_tests_match_the_model_of_the_service() -> None:
    read = list(events())
    deltas = [event["contentBlockDelta"]["delta"] for event in read if "contentBlockDelta" in event]
    assert "".join(delta.get("text", "") for delta in deltas) == "In Köln 😀"
    assert "".join(delta["toolUse"]["input"] for delta in deltas if "toolUse" in delta) == '{"city": "Köln"}'
    starts = [event["contentBlockStart"]["start"]["toolUse"] for event in read if "contentBlockStart" in event]
    assert starts == [{"toolUseId": "tooluse_1", "name": "weather"}, {"toolUseId": "tooluse_2", "name": "now"}]
    assert [event["messageStop"]["stopReason"] for event in read if "messageStop" in event] == ["tool_use"]
    assert read[-1]["metadata"]["usage"]["cacheReadInputTokens"] == 100


def test_the_answers_of_our_tests_match_the_model_of_the_service() -> None:
    response = {"status_code": 200, "headers": {}, "body": json.dumps(BLOCKING).encode()}
    read = create_parser("rest-json").parse(response, output_shape_of("Converse"))
    content = read["output"]["message"]["content"]
    assert [next(iter(block)) for block in content] == ["reasoningContent", "text", "toolUse", "toolUse"]
    assert content[2]["toolUse"] == {"toolUseId": "tooluse_1", "name": "weather", "input": {"city": "Köln"}}
    assert (read["stopReason"], read["usage"]["inputTokens"]) == ("tool_use", 10)


@pytest.mark.parametrize(
    "name", ["ThrottlingException", "ModelNotReadyException", "ModelTimeoutException", "ModelErrorException"]
)
def test_the_exceptions_that_we_translate_exist_in_the_service(name: str) -> None:
    assert name in {shape.name for shape in operation("Converse").error_shapes}
