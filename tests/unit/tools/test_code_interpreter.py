"""The tool ``code_interpreter`` runs code in a fresh interpreter for the caller, and closes it"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from spass.calls.scope import Scope
from spass.core.code_calls import Perform, Sandbox
from spass.core.effects import Cell, CellResult, ToolOutcome
from spass.core.errors import SandboxUnavailable
from spass.core.ids import TenantId, UserId
from spass.core.messages import ToolCall
from spass.sandbox.launchers import NoSandbox
from spass.store.tenant_store import TenantStore
from spass.tenancy.settings import Cascade
from spass.tools.builtin.code_interpreter import CodeInterpreter
from spass.tools.toolbox import Toolbox
from tests.unit.calls.scripted_provider import CONFIG, audit_of, make_scope, memory_store
from tests.unit.tools.fakes import toolbox_of

pytestmark = pytest.mark.anyio


@dataclass
class FakeSandbox:
    """A sandbox whose interpreters give one result, or fail with one error."""

    result: CellResult | Exception = field(default_factory=lambda: CellResult("5050\n"))
    name: str = "fake"
    unavailable: None = None
    opened: list["FakeInterpreter"] = field(default_factory=list)

    def open(self, tenant_id: str, owner_id: str) -> "FakeInterpreter":
        self.opened.append(FakeInterpreter(self, tenant_id, owner_id))
        return self.opened[-1]


@dataclass
class FakeInterpreter:
    sandbox: FakeSandbox
    tenant_id: str
    owner_id: str
    cells: list[Cell] = field(default_factory=list)
    is_closed: bool = False

    async def run(self, cell: Cell, tools: Sequence[str], perform: Perform) -> CellResult:
        assert not tools
        self.cells.append(cell)
        await asyncio.sleep(0.01)
        if isinstance(self.sandbox.result, Exception):
            raise self.sandbox.result
        return self.sandbox.result

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def store() -> TenantStore:
    return memory_store(TenantId("acme"))


def toolbox(sandbox: Sandbox) -> Toolbox:
    return toolbox_of(sandbox=sandbox, cascade=Cascade(CONFIG))


async def run(sandbox: Sandbox, scope: Scope, **arguments: object) -> ToolOutcome:
    call = ToolCall("call_1", "code_interpreter", json.dumps(arguments))
    return await toolbox(sandbox).execute(scope, call, allowed=["code_interpreter"])


async def test_a_call_runs_one_cell_in_an_interpreter_of_its_own(store: TenantStore) -> None:
    sandbox = FakeSandbox()
    for _ in range(2):
        outcome = await run(sandbox, make_scope(store), code="print(sum(range(101)))")
        assert (outcome.ok, outcome.result) == (True, {"output": "5050\n", "error": None, "truncated": 0})
    first, second = sandbox.opened
    assert first.cells == second.cells == [Cell("print(sum(range(101)))")]
    assert first.is_closed
    assert second.is_closed


async def test_an_error_of_the_code_is_part_of_the_result(store: TenantStore) -> None:
    sandbox = FakeSandbox(CellResult("1\n", "ZeroDivisionError: division by zero", 7))
    outcome = await run(sandbox, make_scope(store), code="1/0")
    assert outcome.result == {"output": "1\n", "error": "ZeroDivisionError: division by zero", "truncated": 7}


async def test_a_result_that_is_too_large_is_cut_and_counted(store: TenantStore) -> None:
    outcome = await run(FakeSandbox(CellResult("\x01" * 10_000, "\x02" * 10_000)), make_scope(store), code="x")
    assert isinstance(outcome.result, dict)
    kept = outcome.result["output"]
    assert isinstance(kept, str)
    assert outcome.result["truncated"] == 10_000 - len(kept) > 0
    assert len(outcome.message.content) <= 64 * 1024


Change = Callable[[Scope], Scope]


def with_user(user: str | None) -> Change:
    return lambda scope: replace(scope, caller=replace(scope.caller, user=None if user is None else UserId(user)))


def with_token(token: str, user: str | None = None) -> Change:
    def change(scope: Scope) -> Scope:
        identity = replace(scope.caller.identity, token_id=token)
        return replace(scope, caller=replace(scope.caller, identity=identity, user=None if user is None else UserId(user)))

    return change


async def test_no_two_owners_of_code_share_a_machine() -> None:
    sandbox = FakeSandbox()
    owners: list[Change] = [
        *map(with_user, ("ada", "ben", "token-1", '["user", "ada"]', "ada ", None)),
        *map(with_token, ("token-2", "ada", "token-1\n")),
    ]
    for tenant in ("acme", "beta", "acmeada"):
        for change in owners:
            await run(sandbox, change(make_scope(memory_store(TenantId(tenant)))), code="1")
    ids = [interpreter.owner_id for interpreter in sandbox.opened]
    assert len(set(ids)) == len(ids) == 27
    assert {interpreter.tenant_id for interpreter in sandbox.opened} == {"acme", "beta", "acmeada"}
    assert all(len(one) == 64 and one.isalnum() for one in ids)


async def test_one_user_keeps_a_machine_over_tokens(store: TenantStore) -> None:
    sandbox = FakeSandbox()
    for token in ("token-1", "token-2"):
        await run(sandbox, with_token(token, "ada")(make_scope(store)), code="1")
    assert sandbox.opened[0].owner_id == sandbox.opened[1].owner_id


@pytest.mark.parametrize(
    "arguments", [{}, {"code": ""}, {"code": " \n"}, {"code": 5}, {"code": "x" * 100_001}, {"code": "1", "timeout": 5}], ids=repr
)
async def test_bad_arguments_open_no_interpreter(store: TenantStore, arguments: dict[str, Any]) -> None:
    sandbox = FakeSandbox()
    outcome = await run(sandbox, make_scope(store), **arguments)
    assert isinstance(outcome.result, dict)
    assert outcome.result["error"]["code"] == "invalid_arguments"
    assert sandbox.opened == []


def test_the_schema_asks_for_code_that_is_not_empty() -> None:
    assert CodeInterpreter.model_json_schema()["properties"]["code"]["minLength"] == 1


async def test_without_a_sandbox_a_model_reads_why(store: TenantStore) -> None:
    for sandbox in (NoSandbox("SPASS_SANDBOX is none."), FakeSandbox(SandboxUnavailable("The sandbox does not answer."))):
        outcome = await run(sandbox, make_scope(store), code="1")
        assert not outcome.ok
        assert isinstance(outcome.result, dict)
        assert outcome.result["error"]["code"] == "sandbox_unavailable"
    assert [record["status"] for record in await audit_of(store)] == ["sandbox_unavailable"] * 2


async def test_a_cancelled_call_closes_its_interpreter(store: TenantStore) -> None:
    sandbox = FakeSandbox()
    task = asyncio.create_task(run(sandbox, make_scope(store), code="1"))
    while not sandbox.opened or not sandbox.opened[0].cells:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sandbox.opened[0].is_closed
