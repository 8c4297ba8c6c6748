"""Every tool call gets a bounded answer that the model can read, and leaves one audit record."""

import asyncio
import json
from typing import ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.calls.scope import Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import (
    DocumentNotFound,
    DocumentTooLarge,
    EmbeddingModelMismatch,
    InvalidRequest,
    SpassError,
    StorageUnavailable,
    ToolNotFound,
    UpstreamError,
)
from spass.core.messages import Json, Role, ToolCall
from spass.tools.base import Tool, ToolError
from spass.tools.registry import TOOLS
from spass.tools.results import MAX_RESULT_BYTES
from spass.tools.toolbox import Toolbox
from tests.unit.tools.fakes import scope_for, table_of, toolbox_of

pytestmark = pytest.mark.anyio

CATEGORIES: Final = {"agents", "code", "knowledge", "math", "memory", "model", "reasoning", "time", "web", "workspace"}


class Echo(Tool):
    """Repeats ``text``, or fails as ``failure`` says."""

    category: ClassVar[str] = "reasoning"
    timeout: ClassVar[float] = 0.2

    text: str = ""
    times: int = 1
    failure: str = ""

    async def run(self, _scope: Scope, /) -> Json:
        match self.failure:
            case "slow":
                await asyncio.sleep(60)
            case "tool":
                raise ToolError("Use other words.")
            case "spass":
                raise UpstreamError("The model side failed.")
            case "storage":
                raise StorageUnavailable("The storage did not answer in time; try again.")
            case "missing":
                raise DocumentNotFound("There is no such document.")
            case "large":
                raise DocumentTooLarge("text is 9 bytes long; 8 are allowed.", param="text")
            case "mismatch":
                raise EmbeddingModelMismatch("The index was built with another model.")
            case "half":
                return {"half \udc00": ["\ud800"]}
        return {"echo": self.text * self.times}


@pytest.fixture
def scope() -> Scope:
    return scope_for()


@pytest.fixture
def box() -> Toolbox:
    return toolbox_of(Echo)


async def execute(box: Toolbox, scope: Scope, name: str, arguments: str, *allowed: str) -> ToolOutcome:
    return await box.execute(scope, ToolCall("call_1", name, arguments), allowed=allowed or (name,))


def error_of(finished: ToolOutcome) -> tuple[Json, str]:
    assert isinstance(finished.result, dict)
    error = finished.result["error"]
    assert isinstance(error, dict)
    return error["code"], str(error["message"])


async def test_the_result_of_a_call_is_compact_json(box: Toolbox, scope: Scope) -> None:
    finished = await execute(box, scope, "calculator", '{"expression": "6 * 7"}')
    assert finished.result == {"expression": "6 * 7", "result": 42}
    assert finished.arguments == {"expression": "6 * 7"}
    assert finished.message.role is Role.TOOL
    assert finished.message.tool_call_id == "call_1"
    assert finished.message.content == '{"expression":"6 * 7","result":42}'
    assert finished.duration_ms >= 0
    assert table_of(scope).audited("tool") == [("calculator", "ok")]


@pytest.mark.parametrize(
    ("name", "arguments", "code", "excerpt"),
    [
        ("calculator", "{", "invalid_arguments", "not valid JSON"),
        ("calculator", "{}", "invalid_arguments", "expression"),
        ("calculator", '{"expression": 1}', "invalid_arguments", "expression"),
        ("calculator", '{"expression": "1", "precision": 2}', "invalid_arguments", "precision"),
        ("calculator", '{"expression": "9**9**9**9"}', "invalid_expression", "too large"),
        ("rag_query", '{"index_id": "berlin", "query": "x", "top_k": "5"}', "invalid_arguments", "top_k"),
        ("rag_query", '{"index_id": "berlin", "query": "x", "top_k": 51}', "invalid_arguments", "top_k"),
        ("rag_query", '{"index_id": "../x", "query": "x"}', "invalid_arguments", "index_id"),
        ("rag_query", '{"index_id": "berlin", "query": "x"}', "index_not_found", "berlin"),
        ("current_datetime", '{"timezone": "Mars/Olympus"}', "unknown_timezone", "Europe/Berlin"),
        ("echo", '{"failure": "tool"}', "tool_failed", "other words"),
        ("echo", '{"failure": "spass"}', "upstream_error", "model side"),
        ("echo", '{"failure": "slow"}', "tool_timeout", "in time"),
        ("echo", '{"failure": "large"}', "document_too_large", "8 are allowed"),
        ("echo", '{"failure": "mismatch"}', "embedding_model_mismatch", "another model"),
    ],
)
async def test_a_bad_call_gets_an_error_that_names_the_problem(
    box: Toolbox, scope: Scope, name: str, arguments: str, code: str, excerpt: str
) -> None:
    finished = await execute(box, scope, name, arguments)
    actual_code, message = error_of(finished)
    assert actual_code == code
    assert excerpt in message
    assert json.loads(finished.message.content) == finished.result
    assert table_of(scope).audited("tool") == [(name, code)]


@pytest.mark.parametrize("name", ["nothing", "", "rag_query", "half \ud800", "__init__"])
async def test_a_tool_that_is_not_allowed_is_unknown(box: Toolbox, scope: Scope, name: str) -> None:
    finished = await execute(box, scope, name, "{}", "calculator")
    code, message = error_of(finished)
    assert code == "tool_not_found"
    assert "calculator" in message
    finished.message.content.encode()
    assert table_of(scope).audited("tool") == [(None, "tool_not_found")]


async def test_arguments_that_are_not_json_are_shown_as_text(box: Toolbox, scope: Scope) -> None:
    assert (await execute(box, scope, "calculator", "six times \ud800 seven")).arguments == "six times ? seven"


@pytest.mark.parametrize("text", ["x", '"', "\\", "\n", "ü", "🙂", '\\"'])
async def test_a_long_result_is_truncated_and_says_so(box: Toolbox, scope: Scope, text: str) -> None:
    finished = await execute(box, scope, "echo", json.dumps({"text": text, "times": MAX_RESULT_BYTES}))
    assert len(finished.message.content.encode()) <= MAX_RESULT_BYTES
    assert isinstance(finished.result, dict)
    assert finished.result["truncated"] is True
    assert json.loads(finished.message.content) == finished.result


async def test_unpaired_surrogates_in_a_result_are_replaced(box: Toolbox, scope: Scope) -> None:
    finished = await execute(box, scope, "echo", '{"failure": "half"}')
    assert finished.result == {"half ?": ["?"]}


async def test_a_deadline_in_the_past_ends_the_call(box: Toolbox) -> None:
    finished = await execute(box, scope_for(seconds=-1), "echo", '{"failure": "slow"}')
    assert error_of(finished)[0] == "tool_timeout"


async def test_a_cancelled_call_leaves_a_record(box: Toolbox, scope: Scope) -> None:
    task = asyncio.create_task(execute(box, scope, "echo", '{"failure": "slow"}'))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert table_of(scope).audited("tool") == [("echo", "cancelled")]


async def test_a_result_survives_a_lost_record(box: Toolbox, scope: Scope) -> None:
    table_of(scope).broken = True
    assert (await execute(box, scope, "calculator", '{"expression": "1+1"}')).result == {"expression": "1+1", "result": 2}


async def test_a_direct_call_returns_name_result_and_duration(box: Toolbox, scope: Scope) -> None:
    answer = await box.execute_direct(scope, "calculator", {"expression": "1+1"})
    assert answer.body.to_dict() == {
        "name": "calculator",
        "result": {"expression": "1+1", "result": 2},
        "duration_ms": answer.body.duration_ms,
    }
    failed = await box.execute_direct(scope, "calculator", {"expression": "1/0"})
    assert isinstance(failed.body.result, dict)
    assert "error" in failed.body.result


async def test_unavailable_storage_fails_the_turn_and_is_audited(box: Toolbox, scope: Scope) -> None:
    with pytest.raises(StorageUnavailable):
        await execute(box, scope, "echo", '{"failure": "storage"}')
    assert table_of(scope).audited("tool") == [("echo", "storage_unavailable")]


@pytest.mark.parametrize(
    ("failure", "kind", "param"),
    [
        ("spass", UpstreamError, None),
        ("storage", StorageUnavailable, None),
        ("large", DocumentTooLarge, "arguments.text"),
        ("mismatch", EmbeddingModelMismatch, None),
    ],
)
async def test_a_direct_call_raises_the_errors_that_other_routes_raise(
    box: Toolbox, scope: Scope, failure: str, kind: type[SpassError], param: str | None
) -> None:
    with pytest.raises(kind) as caught:
        await box.execute_direct(scope, "echo", {"failure": failure})
    assert caught.value.param == param
    assert len(table_of(scope).audited("tool")) == 1
    for result in ("tool", "missing", "slow"):
        assert (await box.execute_direct(scope, "echo", {"failure": result})).failed
    assert not (await box.execute_direct(scope, "echo", {})).failed


async def test_a_direct_call_refuses_an_unknown_tool_and_wrong_arguments(box: Toolbox, scope: Scope) -> None:
    with pytest.raises(ToolNotFound):
        await box.execute_direct(scope, "nothing", {})
    with pytest.raises(InvalidRequest) as caught:
        await box.execute_direct(scope, "calculator", {"expression": 1})
    assert caught.value.details["errors"] == [
        {"loc": ["body", "arguments", "expression"], "message": "must be text", "type": "string_type"}
    ]
    with pytest.raises(InvalidRequest) as caught:
        await box.execute_direct(scope, "calculator", {"x" * 60_000: 1})
    assert len(str(caught.value.details)) + len(caught.value.message) + len(str(caught.value.param)) < 1000, (
        "the error does not repeat a long name"
    )


@given(name=st.sampled_from([*TOOLS, "nothing"]), arguments=st.text(max_size=60))
async def test_arbitrary_arguments_of_a_model_never_raise(name: str, arguments: str) -> None:
    finished = await toolbox_of().execute(scope_for(), ToolCall("c", name, arguments), allowed=[*TOOLS][:2])
    assert json.loads(finished.message.content) == finished.result


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_has_a_description_and_a_schema(name: str) -> None:
    (spec,) = toolbox_of().specs(scope_for(admin=True), [name])
    assert spec.name == name
    assert spec.category in CATEGORIES
    assert "Example: {" in spec.description or name == "calculator"
    schema = spec.parameters
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert "title" not in {key: value for key, value in schema.items() if key != "properties"}
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for field in properties.values():
        assert isinstance(field, dict)
        assert field["description"]
        assert "title" not in field


def test_a_property_named_title_stays_in_the_schema() -> None:
    (spec,) = toolbox_of().specs(scope_for(), ["wikipedia_summary"])
    assert isinstance(spec.parameters["properties"], dict)
    assert set(spec.parameters["properties"]) == {"title", "language"}
    assert spec.parameters["required"] == ["title"]


def test_specs_of_an_unknown_tool_raise_tool_not_found() -> None:
    with pytest.raises(ToolNotFound):
        toolbox_of().specs(scope_for(), ["calculator", "nothing"])
