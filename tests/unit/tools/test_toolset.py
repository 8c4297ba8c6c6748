"""A source of tools of any kind gets the names, the limits, the errors and the records that all tools have."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from spass.approvals.ending import Ending
from spass.calls.scope import CallReports, Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import ToolNotFound
from spass.core.messages import Json, ToolCall, ToolSpec
from spass.tools.base import Returned, ToolError
from spass.tools.results import MAX_RESULT_BYTES
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ReadyCall, gateway_toolsets
from tests.unit.tools.fakes import FakeServices, scope_for, table_of

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class RemoteCall:
    """A call of a tool of another server."""

    answer: Callable[[Scope], Awaitable[Json]]
    seconds: float = 0.2

    async def run(self, scope: Scope) -> Returned:
        return await self.answer(scope)

    async def run_approved(self, scope: Scope, effect: Mapping[str, Json], ending: Ending) -> Returned:
        raise NotImplementedError


@dataclass(frozen=True)
class RemoteTools:
    """The tools of another server, as it lists them. All answer with ``answer``."""

    answer: Callable[[Scope], Awaitable[Json]]
    names: Collection[str] = ("remote_search", "remote_read")

    def specs(self, _scope: Scope, names: Collection[str]) -> Sequence[ToolSpec]:
        return [ToolSpec(name, "Does it elsewhere.", {"type": "object"}) for name in names]

    def call(self, _scope: Scope, _name: str, _arguments: Mapping[str, Json]) -> ReadyCall:
        return RemoteCall(self.answer)


def toolbox_with(answer: Callable[[Scope], Awaitable[Json]]) -> Toolbox:
    services = FakeServices()
    return Toolbox(lambda turn: (*gateway_toolsets(services, turn), RemoteTools(answer)))


async def call(
    answer: Callable[[Scope], Awaitable[Json]],
    scope: Scope,
    *,
    allowed: Sequence[str] = ("remote_search",),
    arguments: str = "{}",
) -> ToolOutcome:
    return await toolbox_with(answer).execute(scope, ToolCall("c1", "remote_search", arguments), allowed=allowed)


def code_of(outcome: ToolOutcome) -> str:
    result: Any = outcome.result
    assert (outcome.ok, json.loads(outcome.message.content)) == (False, result)
    return str(result["error"]["code"])


async def says_hello(_: Scope) -> Json:
    return {"hello": "world"}


async def test_the_tools_of_a_further_source_are_offered_called_and_recorded() -> None:
    scope, box = scope_for(), toolbox_with(says_hello)
    assert [spec.name for spec in box.specs(scope, ["calculator", "remote_read"])] == ["calculator", "remote_read"]
    outcome = await call(says_hello, scope)
    assert (outcome.ok, outcome.message.content) == (True, '{"hello":"world"}')
    assert table_of(scope).audited("tool") == [("remote_search", "ok")]
    direct = await box.execute_direct(scope, "remote_search", {})
    assert (direct.body.name, direct.body.result) == ("remote_search", {"hello": "world"})


async def test_a_tool_that_is_not_offered_is_unknown_whatever_its_arguments() -> None:
    scope = scope_for()
    outcome = await call(says_hello, scope, allowed=["calculator"], arguments="not JSON")
    assert code_of(outcome) == "tool_not_found"
    assert table_of(scope).audited("tool") == [(None, "tool_not_found")]
    with pytest.raises(ToolNotFound):
        toolbox_with(says_hello).specs(scope, ["remote_write"])


async def test_a_call_that_hangs_is_cancelled_at_its_limit_and_at_the_deadline() -> None:
    async def hang(_: Scope) -> Json:
        await asyncio.sleep(60)
        return None

    for scope in (scope_for(), scope_for(seconds=0.05)):
        assert code_of(await call(hang, scope)) == "tool_timeout"
        assert table_of(scope).audited("tool") == [("remote_search", "tool_timeout")]


async def test_a_call_that_fails_is_an_error_that_the_model_reads() -> None:
    async def fail(_: Scope) -> Json:
        raise ToolError("The server is closed. Answer without it.", code="remote_failed")

    scope = scope_for()
    assert code_of(await call(fail, scope)) == "remote_failed"
    assert table_of(scope).audited("tool") == [("remote_search", "remote_failed")]


def circle() -> Json:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize("value", [object(), {"x": {1, 2}}, float("nan"), [float("inf")], b"bytes", circle()], ids=str)
async def test_a_result_that_is_not_json_is_an_error_that_the_model_reads(value: Any) -> None:
    async def answer(_: Scope) -> Json:
        return value  # type: ignore[no-any-return]

    scope = scope_for()
    assert code_of(await call(answer, scope)) == "tool_failed"
    assert table_of(scope).audited("tool") == [("remote_search", "tool_failed")]
    assert (await toolbox_with(answer).execute_direct(scope, "remote_search", {})).failed


async def test_a_result_that_is_too_long_is_cut() -> None:
    async def talk(_: Scope) -> Json:
        return "x" * MAX_RESULT_BYTES

    outcome = await call(talk, scope_for())
    assert outcome.ok
    assert len(outcome.message.content) <= MAX_RESULT_BYTES


async def test_a_call_reports_its_progress_in_its_scope_and_its_work_belongs_to_it() -> None:
    told: list[str] = []
    scopes: list[Scope] = []

    async def report(scope: Scope) -> Json:
        scope.reports.progress("half")
        scopes.append(scope)
        return None

    scope = scope_for()
    await toolbox_with(report).execute(
        scope, ToolCall("c1", "remote_read", "{}"), CallReports("c1", told.append), allowed=["remote_read"]
    )
    (record,) = table_of(scope).written
    assert (told, scopes[0].parent) == (["half"], record.attributes["request_id"])
    assert replace(scopes[0], parent=None, reports=scope.reports) == scope
