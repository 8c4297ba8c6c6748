"""The tool ``delegate``: its arguments, its limits and the size of its result. A fake does the work of the delegates."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from spass.calls.scope import CallReports, Scope
from spass.core.effects import ToolOutcome
from spass.core.ids import ApprovalId, WorkspaceId
from spass.core.messages import FinishReason, Json, ToolCall
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.tools.builtin.delegate import Delegation
from spass.tools.grants import NO_GRANTS, Grants
from spass.tools.toolset import ToolTurn
from tests.unit.tools.fakes import scope_for, toolbox_of

pytestmark = pytest.mark.anyio

GRANTS = Grants(WorkspaceId("default"), delegates=("coder", "writer"))
CASCADE = Cascade(GatewayConfig())


@dataclass
class FakeDelegates:
    """Every delegate answers with ``delegation``. ``tasks`` are what they were asked."""

    delegation: Delegation = field(default_factory=lambda: Delegation("Done.", FinishReason.STOP))
    tasks: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, Grants]] = field(default_factory=list)

    async def run(self, scope: Scope, grants: Grants, agent: str, task: str) -> Delegation:
        self.calls.append((scope.reports.call_id, grants))
        self.tasks.append((agent, task))
        return self.delegation

    async def call(self, arguments: Mapping[str, Json], *, scope: Scope | None = None, grants: Grants = GRANTS) -> ToolOutcome:
        toolbox = toolbox_of(delegates=self, cascade=CASCADE)
        call = ToolCall("call_1", "delegate", json.dumps(arguments))
        return await toolbox.execute(
            scope or scope_for(), call, CallReports(call.id), allowed=["delegate"], turn=ToolTurn(grants=grants)
        )


def error_code(outcome: ToolOutcome) -> str:
    result: Any = outcome.result
    return str(result["error"]["code"])


async def test_the_result_is_what_the_delegate_did() -> None:
    waiting: Json = {"approval_required": True, "approval_id": "apr_1", "preview": {}}
    done = Delegation("Done.", FinishReason.MAX_TURNS, (4, 5), (waiting,), (ApprovalId("apr_1"),))
    delegates = FakeDelegates(done)
    outcome = await delegates.call({"agent": "coder", "task": "Do it."})
    assert outcome.result == {
        "agent": "coder",
        "answer": "Done.",
        "finish_reason": "max_turns",
        "versions": [4, 5],
        "approvals": [waiting],
    }
    assert (outcome.ok, outcome.waiting, outcome.versions, outcome.approval) == (True, ("apr_1",), (4, 5), None)
    assert delegates.tasks == [("coder", "Do it.")]
    assert delegates.calls == [("call_1", GRANTS)]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"agent": "coder"}, {"task": "x"}, {"agent": "", "task": "x"}, {"agent": "coder", "task": " \n"}, {"agent": 1}],
)
async def test_bad_arguments_ask_nobody(arguments: Mapping[str, Json]) -> None:
    delegates = FakeDelegates()
    assert error_code(await delegates.call(arguments)) == "invalid_arguments"
    assert error_code(await delegates.call({"agent": "coder", "task": "x", "model": "m"})) == "invalid_arguments"
    assert delegates.tasks == []


@pytest.mark.parametrize("name", ["boss", "CODER", "coder ", "../coder"])
async def test_another_name_than_those_of_the_list_is_an_unknown_agent(name: str) -> None:
    delegates = FakeDelegates()
    assert error_code(await delegates.call({"agent": name, "task": "x"})) == "agent_not_found"
    assert delegates.tasks == []


async def test_without_a_workspace_the_tool_is_unavailable() -> None:
    delegates = FakeDelegates()
    assert error_code(await delegates.call({"agent": "coder", "task": "x"}, grants=NO_GRANTS)) == "tool_unavailable"
    answer = await toolbox_of().execute_direct(scope_for(), "delegate", {"agent": "coder", "task": "x"})
    result: Any = answer.body.result
    assert (answer.failed, result["error"]["code"]) == (True, "tool_unavailable")


async def test_refused_calls_are_not_delegates_of_the_turn() -> None:
    delegates, scope = FakeDelegates(), scope_for()
    for _ in range(10):
        await delegates.call({"agent": "boss", "task": "x"}, scope=scope)
        await delegates.call({"agent": "coder", "task": "x"}, scope=replace(scope, depth=2))
    outcomes = [await delegates.call({"agent": "coder", "task": "x"}, scope=scope) for _ in range(10)]
    assert [outcome.ok for outcome in outcomes] == [True] * 8 + [False] * 2


@pytest.mark.parametrize("letter", ["a", "ü", "\n", "\x00", "🎉", "\ud800"])
@pytest.mark.parametrize("previews", [0, 1, 20, 3000])
async def test_a_result_that_is_too_long_keeps_its_fields(letter: str, previews: int) -> None:
    approvals: list[Json] = [{"approval_id": f"apr_{n}", "preview": {"text": letter * 9000}} for n in range(previews)]
    done = Delegation(letter * 90_000, FinishReason.STOP, tuple(range(300)), tuple(approvals))
    outcome = await FakeDelegates(done).call({"agent": "coder", "task": "x"})
    result: Any = outcome.result
    assert list(result) == ["agent", "answer", "finish_reason", "versions", "approvals"]
    assert len(outcome.message.content.encode()) <= 64 * 1024
    assert result["answer"].endswith("This is its beginning.")
    assert len(result["answer"]) > 1000
    assert [approval["approval_id"] for approval in result["approvals"]] == [f"apr_{n}" for n in range(len(result["approvals"]))]
    assert len(result["approvals"]) >= min(previews, 100)
