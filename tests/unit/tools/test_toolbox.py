"""Whatever a model asks of a tool, it gets an answer it can read, within bounds, and one record is left."""

import asyncio
import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.calls.scope import Scope
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
from spass.core.events import ToolCallFinished
from spass.core.messages import Json, Role, ToolCall
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.tools import registry, toolbox
from spass.tools.base import Tool, ToolContext, ToolError
from spass.tools.registry import TOOLS
from spass.tools.results import MAX_RESULT_BYTES
from spass.tools.toolbox import MAX_CALLS, Toolbox
from tests.unit.tools.fakes import FakeReader, rag_with, scope_for, table_of

pytestmark = pytest.mark.anyio


class Echo(Tool):
    """Answers what it is told to. Test tool."""

    tool_name: ClassVar[str] = "echo"
    timeout: ClassVar[float] = 0.2

    text: str = ""
    times: int = 1
    failure: str = ""

    async def run(self, _context: ToolContext, /) -> Json:
        match self.failure:
            case "slow":
                await asyncio.sleep(60)
            case "tool":
                raise ToolError("Say it otherwise.")
            case "spass":
                raise UpstreamError("The model side failed.")
            case "storage":
                raise StorageUnavailable("The storage did not answer in time; try again.")
            case "mine":
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
def box(monkeypatch: pytest.MonkeyPatch) -> Toolbox:
    tools = {**TOOLS, "echo": f"{__name__}:Echo"}
    monkeypatch.setattr(registry, "TOOLS", tools)
    monkeypatch.setattr(toolbox, "TOOLS", tools)
    monkeypatch.setattr(toolbox, "load_tool", lambda name: Echo if name == "echo" else registry.load_tool(name))
    return Toolbox(rag_with(FakeReader()), Cascade(GatewayConfig()))


async def execute(box: Toolbox, scope: Scope, name: str, arguments: str, *allowed: str) -> ToolCallFinished:
    return await box.execute(scope, ToolCall("call_1", name, arguments), allowed=allowed or (name,))


def error_of(finished: ToolCallFinished) -> tuple[Json, str]:
    assert isinstance(finished.result, dict)
    error = finished.result["error"]
    assert isinstance(error, dict)
    return error["code"], str(error["message"])


async def test_a_good_call_is_answered_as_compact_json(box: Toolbox, scope: Scope) -> None:
    finished = await execute(box, scope, "calculator", '{"expression": "6 * 7"}')
    assert finished.result == {"expression": "6 * 7", "result": 42}
    assert finished.arguments == {"expression": "6 * 7"}
    assert finished.message.role is Role.TOOL
    assert finished.message.tool_call_id == "call_1"
    assert finished.message.content == '{"expression":"6 * 7","result":42}'
    assert finished.duration_ms >= 0
    assert table_of(scope).audited("tool") == [("calculator", "ok")]


@pytest.mark.parametrize(
    ("name", "arguments", "code", "says"),
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
        ("echo", '{"failure": "tool"}', "tool_failed", "otherwise"),
        ("echo", '{"failure": "spass"}', "upstream_error", "model side"),
        ("echo", '{"failure": "slow"}', "tool_timeout", "in time"),
        ("echo", '{"failure": "large"}', "document_too_large", "8 are allowed"),
        ("echo", '{"failure": "mismatch"}', "embedding_model_mismatch", "another model"),
    ],
)
async def test_a_bad_call_is_answered_with_an_error_to_learn_from(
    box: Toolbox, scope: Scope, name: str, arguments: str, code: str, says: str
) -> None:
    finished = await execute(box, scope, name, arguments)
    said_code, message = error_of(finished)
    assert said_code == code
    assert says in message
    assert json.loads(finished.message.content) == finished.result
    assert table_of(scope).audited("tool") == [(name, code)]


@pytest.mark.parametrize("name", ["nothing", "", "rag_query", "half \ud800", "__init__"])
async def test_a_tool_the_agent_does_not_have_does_not_exist_for_it(box: Toolbox, scope: Scope, name: str) -> None:
    finished = await execute(box, scope, name, "{}", "calculator")
    code, message = error_of(finished)
    assert code == "tool_not_found"
    assert "calculator" in message
    finished.message.content.encode()
    assert table_of(scope).audited("tool") == [(None, "tool_not_found")]


async def test_arguments_that_are_no_json_are_recorded_as_the_text_they_are(box: Toolbox, scope: Scope) -> None:
    assert (await execute(box, scope, "calculator", "six times \ud800 seven")).arguments == "six times ? seven"


@pytest.mark.parametrize("text", ["x", '"', "\\", "\n", "ü", "🙂", '\\"'])
async def test_a_long_result_is_cut_and_marked(box: Toolbox, scope: Scope, text: str) -> None:
    finished = await execute(box, scope, "echo", json.dumps({"text": text, "times": MAX_RESULT_BYTES}))
    assert len(finished.message.content.encode()) <= MAX_RESULT_BYTES
    assert isinstance(finished.result, dict)
    assert finished.result["truncated"] is True
    assert json.loads(finished.message.content) == finished.result


async def test_half_a_surrogate_pair_in_a_result_goes_no_further(box: Toolbox, scope: Scope) -> None:
    finished = await execute(box, scope, "echo", '{"failure": "half"}')
    assert finished.result == {"half ?": ["?"]}


async def test_a_deadline_that_has_passed_ends_the_call(box: Toolbox) -> None:
    finished = await execute(box, scope_for(seconds=-1), "echo", '{"failure": "slow"}')
    assert error_of(finished)[0] == "tool_timeout"


async def test_a_cancelled_call_leaves_its_record_too(box: Toolbox, scope: Scope) -> None:
    task = asyncio.create_task(execute(box, scope, "echo", '{"failure": "slow"}'))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert table_of(scope).audited("tool") == [("echo", "cancelled")]


async def test_a_result_is_not_lost_when_its_record_is(box: Toolbox, scope: Scope) -> None:
    table_of(scope).broken = True
    assert (await execute(box, scope, "calculator", '{"expression": "1+1"}')).result == {"expression": "1+1", "result": 2}


async def test_a_direct_call_answers_name_result_and_duration(box: Toolbox, scope: Scope) -> None:
    answer = await box.execute_direct(scope, "calculator", {"expression": "1+1"})
    assert answer.body.to_dict() == {
        "name": "calculator",
        "result": {"expression": "1+1", "result": 2},
        "duration_ms": answer.body.duration_ms,
    }
    failed = await box.execute_direct(scope, "calculator", {"expression": "1/0"})
    assert isinstance(failed.result, dict)
    assert "error" in failed.result


async def test_a_store_that_is_away_fails_the_turn_and_is_audited(box: Toolbox, scope: Scope) -> None:
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
async def test_a_direct_call_fails_for_what_any_other_route_fails_for(
    box: Toolbox, scope: Scope, failure: str, kind: type[SpassError], param: str | None
) -> None:
    with pytest.raises(kind) as caught:
        await box.execute_direct(scope, "echo", {"failure": failure})
    assert caught.value.param == param
    assert len(table_of(scope).audited("tool")) == 1
    for own in ("tool", "mine", "slow"):
        assert (await box.execute_direct(scope, "echo", {"failure": own})).failed
    assert not (await box.execute_direct(scope, "echo", {})).failed


async def test_a_direct_call_of_no_tool_or_with_wrong_arguments_is_the_callers_error(box: Toolbox, scope: Scope) -> None:
    with pytest.raises(ToolNotFound):
        await box.execute_direct(scope, "nothing", {})
    with pytest.raises(InvalidRequest) as caught:
        await box.execute_direct(scope, "calculator", {"expression": 1})
    assert caught.value.details["errors"] == [
        {"loc": ["body", "arguments", "expression"], "message": "must be text", "type": "string_type"}
    ]
    with pytest.raises(InvalidRequest) as caught:
        await box.execute_direct(scope, "calculator", {"x" * 60_000: 1})
    assert len(str(caught.value.details)) + len(caught.value.message) + len(str(caught.value.param)) < 1000, "an error is no echo"


@dataclass(slots=True)
class ConcurrencyCounter:
    """Counts who is at work together, in ``Waits``."""

    now: int = 0
    most: int = 0


CROWD: ContextVar[ConcurrencyCounter] = ContextVar("CROWD")


class Waits(Tool):
    """Takes its time. Test tool."""

    tool_name: ClassVar[str] = "echo"

    steps: int = 3
    broken: bool = False

    async def run(self, _context: ToolContext, /) -> Json:
        concurrency = CROWD.get()
        concurrency.now += 1
        concurrency.most = max(concurrency.most, concurrency.now)
        try:
            for _ in range(self.steps):
                await asyncio.sleep(0)
        finally:
            concurrency.now -= 1
        if self.broken:
            raise StorageUnavailable("The storage did not answer in time; try again.")
        return self.steps


@pytest.fixture
def concurrency(box: Toolbox, monkeypatch: pytest.MonkeyPatch) -> ConcurrencyCounter:
    monkeypatch.setattr(toolbox, "load_tool", lambda _: Waits)
    return ConcurrencyCounter()


def asked(*arguments: Mapping[str, Json]) -> list[ToolCall]:
    return [ToolCall(f"call_{at}", "echo", json.dumps(given)) for at, given in enumerate(arguments)]


async def test_the_calls_of_one_answer_run_together_and_are_answered_in_order(
    box: Toolbox, scope: Scope, concurrency: ConcurrencyCounter
) -> None:
    CROWD.set(concurrency)
    calls = asked(*({"steps": 30 - at} for at in range(20)))
    finished = await box.execute_all(scope, calls, allowed=["echo"])
    assert [(one.call, one.result, one.message.tool_call_id) for one in finished] == [
        (call, 30 - at, call.id) for at, call in enumerate(calls)
    ]
    assert concurrency.most == 8


async def test_a_failure_waits_for_the_calls_beside_it_and_is_raised(
    box: Toolbox, scope: Scope, concurrency: ConcurrencyCounter
) -> None:
    CROWD.set(concurrency)
    with pytest.raises(StorageUnavailable):
        await box.execute_all(scope, asked({"broken": True}, *({"steps": 50} for _ in range(12))), allowed=["echo"])
    assert concurrency.now == 0
    assert len(table_of(scope).audited("tool")) == 13


async def test_who_asks_for_too_much_at_once_is_told_so_and_the_rest_is_not_run(box: Toolbox, scope: Scope) -> None:
    calls = [ToolCall(f"c{at}", "calculator", f'{{"expression": "{at}"}}') for at in range(MAX_CALLS + 3)]
    finished = await box.execute_all(scope, [*calls, ToolCall("last", "calculator", "six \ud800")], allowed=["calculator"])
    assert [one.call.id for one in finished] == [*(call.id for call in calls), "last"]
    *ran, first_left, _, _, last = finished
    assert [one.result for one in ran] == [{"expression": f"{at}", "result": at} for at in range(MAX_CALLS)]
    assert table_of(scope).audited("tool") == [("calculator", "ok")] * MAX_CALLS
    for one in (first_left, last):
        code, message = error_of(one)
        assert code == "too_many_tool_calls"
        assert f"{MAX_CALLS}" in message
        assert json.loads(one.message.content) == one.result
        assert one.message.tool_call_id == one.call.id
    assert (first_left.arguments, last.arguments) == ({"expression": f"{MAX_CALLS}"}, "six ?")


@given(name=st.sampled_from([*TOOLS, "nothing"]), arguments=st.text(max_size=60))
async def test_nothing_a_model_writes_raises(name: str, arguments: str) -> None:
    finished = await Toolbox(rag_with(FakeReader()), Cascade(GatewayConfig())).execute(
        scope_for(), ToolCall("c", name, arguments), allowed=[*TOOLS][:2]
    )
    assert json.loads(finished.message.content) == finished.result


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_describes_itself_for_a_model(name: str) -> None:
    (spec,) = Toolbox(rag_with(FakeReader()), Cascade(GatewayConfig())).specs([name], scope_for(admin=True).caller.identity)
    assert spec.name == name
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


def test_a_property_called_title_stays_in_the_schema() -> None:
    (spec,) = Toolbox(rag_with(FakeReader()), Cascade(GatewayConfig())).specs(["wikipedia_summary"], scope_for().caller.identity)
    assert isinstance(spec.parameters["properties"], dict)
    assert set(spec.parameters["properties"]) == {"title", "language"}
    assert spec.parameters["required"] == ["title"]


def test_specs_of_an_unknown_tool_are_not_found() -> None:
    with pytest.raises(ToolNotFound):
        Toolbox(rag_with(FakeReader()), Cascade(GatewayConfig())).specs(["calculator", "nothing"], scope_for().caller.identity)
