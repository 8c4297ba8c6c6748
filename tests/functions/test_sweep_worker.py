"""The handler of the hourly sweep, with the tenants of a whole gateway."""

import asyncio
import errno
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from functions.workers import sweep
from spass.core.code_calls import Perform
from spass.core.effects import Cell, CellResult
from spass.core.errors import SandboxUnavailable, StorageUnavailable
from spass.core.ids import TenantId, WorkspaceId
from spass.core.time import Deadline
from spass.rag.write.sweep import GARBAGE_SECONDS
from spass.web.startup import WorkerFunction, worker_handler
from spass.workspaces.change import Author, Change
from spass.workspaces.paths import parse_path
from tests.functions.gateway import Gateway
from tests.simulated.interpreter import InProcessInterpreter, InProcessSandbox

DOCUMENTS = "/a1/rag/indices/books/documents"
SEGMENT_OBJECTS = 5


@pytest.fixture
def sweep_handler(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerFunction]:
    """The handler, with a clock that is late enough for garbage to be deleted."""
    monkeypatch.setattr("functions.workers.sweep.now_s", lambda: int(time.time()) + GARBAGE_SECONDS + 60)
    handler = worker_handler(sweep.work, gateway.services)
    yield handler
    handler.close()


def invoke(handler: WorkerFunction, milliseconds: int = 900_000) -> dict[str, Any]:
    context: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: milliseconds)
    answer = handler({}, context)
    assert isinstance(answer, dict)
    return dict(answer)


def replace_twice(gateway: Gateway, token: str) -> None:
    for text in ("old", "new"):
        gateway.send("POST", DOCUMENTS, body={"documents": [{"id": "a", "text": text}]}, token=token)


def test_every_tenant_is_swept_and_one_line_has_the_counts(
    gateway: Gateway, sweep_handler: WorkerFunction, capsys: pytest.CaptureFixture[str]
) -> None:
    for token in ("demo-admin-token", "other-token"):
        replace_twice(gateway, token)
    capsys.readouterr()
    counts = invoke(sweep_handler)
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line == counts
    assert (line["event"], line["tenants"], line["swept"], line["retired"]) == ("swept", 3, 3, 2 * SEGMENT_OBJECTS)
    document = gateway.send("GET", f"{DOCUMENTS}/a", token="other-token").json
    assert document["text"] == "new"
    assert invoke(sweep_handler)["retired"] == 0


def test_a_deleted_workspace_leaves_no_byte_after_the_sweep(gateway: Gateway, sweep_handler: WorkerFunction) -> None:
    services = gateway.services
    store, workspace = services.aws.for_tenant(TenantId("demo")), WorkspaceId("default")

    async def write_and_delete() -> None:
        change = Change.of({parse_path("secret.txt"): b"secret"})
        await services.workspaces.open(store, workspace).commit(change, Author(), Deadline.after(10))
        assert await services.workspaces.open(store, workspace).delete(Deadline.after(10))
        assert len(await store.objects.list_keys("ws/")) == 2

    asyncio.run(write_and_delete())
    counts = invoke(sweep_handler)
    assert (counts["workspaces"], counts["workspace_orphans"]) == (1, 0)
    assert asyncio.run(store.objects.list_keys("ws/")) == []


def test_a_tenants_failure_does_not_stop_the_sweep_of_others(
    gateway: Gateway, sweep_handler: WorkerFunction, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_twice(gateway, "demo-admin-token")
    for_tenant = gateway.services.aws.for_tenant

    def fail_for_other(tenant: TenantId) -> object:
        if tenant == "other":
            raise StorageUnavailable("down")
        return for_tenant(tenant)

    monkeypatch.setattr(gateway.services.aws, "for_tenant", fail_for_other)
    counts = invoke(sweep_handler)
    assert (counts["swept"], counts["failed"], counts["retired"]) == (2, 1, SEGMENT_OBJECTS)
    assert '"event":"sweep_failed"' in capsys.readouterr().out


def test_a_sweep_ends_at_its_deadline(gateway: Gateway, sweep_handler: WorkerFunction) -> None:
    replace_twice(gateway, "demo-admin-token")
    assert "swept" not in invoke(sweep_handler, milliseconds=1000)


class SilentInterpreter(InProcessInterpreter):
    async def run(self, cell: Cell, tools: Sequence[str], perform: Perform) -> CellResult:
        return replace(await super().run(cell, tools, perform), output="")


class BrokenSandbox(InProcessSandbox):
    def open(self, tenant_id: str, owner_id: str) -> InProcessInterpreter:
        raise SandboxUnavailable("no machine")


class SilentSandbox(InProcessSandbox):
    def open(self, tenant_id: str, owner_id: str) -> InProcessInterpreter:
        self.opened.append(SilentInterpreter())
        return self.opened[-1]


def sweep_at(hour: float, gateway: Gateway, sandbox: InProcessSandbox, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Sweep at this hour of a day, UTC."""
    monkeypatch.setattr("functions.workers.sweep.now_s", lambda: int((20_000 * 24 + hour) * 3600))
    gateway.services.sandbox = sandbox
    handler = worker_handler(sweep.work, gateway.services)
    try:
        return invoke(handler)
    finally:
        handler.close()


@pytest.fixture(autouse=True)
def no_other_process_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to open what belongs to other processes, as a machine with a confined sandbox does."""
    real = os.open

    def confined(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if str(path).startswith("/proc/"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", confined)


def test_code_that_can_open_the_memory_of_another_process_is_a_failure(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    confined = os.open

    def leaking(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        return confined(os.devnull if path == "/proc/1/mem" else path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", leaking)
    assert sweep_at(3.5, gateway, InProcessSandbox(name="lambda"), monkeypatch)["sandbox"] == "failed"
    (failure,) = [one for one in map(json.loads, capsys.readouterr().out.splitlines()) if one["event"] == "sandbox_failed"]
    assert "can open what belongs to another process: mem of process 1." in json.dumps(failure)


def test_once_a_day_the_sweep_runs_a_line_of_code_for_no_user(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lambda makes a function in a VPC inactive after two weeks without a call."""
    sandbox = InProcessSandbox(name="lambda")
    lines = [sweep_at(hour, gateway, sandbox, monkeypatch) for hour in (2.9, 3, 3.9, 4, 27)]
    assert [line.get("sandbox") for line in lines] == [None, "ok", "ok", None, "ok"]
    assert sandbox.owners == ["sweep"] * 3
    assert [len(interpreter.cells) for interpreter in sandbox.opened] == [1] * 3
    assert sandbox.running == 0


def test_a_laptops_sweep_runs_no_code(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = InProcessSandbox(name="process")
    assert "sandbox" not in sweep_at(3, gateway, sandbox, monkeypatch)
    assert sandbox.opened == []


@pytest.mark.parametrize("kind", [BrokenSandbox, SilentSandbox])
def test_a_sandbox_that_fails_is_logged_and_the_tenants_are_swept(
    gateway: Gateway,
    kind: type[InProcessSandbox],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sandbox = kind(name="lambda")
    line = sweep_at(3.5, gateway, sandbox, monkeypatch)
    assert (line["sandbox"], line["swept"]) == ("failed", 3)
    assert sandbox.running == 0
    failures = [one for one in map(json.loads, capsys.readouterr().out.splitlines()) if one["event"] == "sandbox_failed"]
    assert [one["level"] for one in failures] == ["error"]
