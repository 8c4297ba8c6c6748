"""The handler of the hourly sweep, with the tenants of a whole gateway."""

import asyncio
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from functions.workers import sweep
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId, WorkspaceId
from spass.core.time import Deadline
from spass.rag.write.sweep import GARBAGE_SECONDS
from spass.web.worker_function import WorkerFunction, worker_handler
from spass.workspaces.change import Author, Change
from spass.workspaces.paths import parse_path
from tests.functions.gateway import Gateway

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
        await services.workspaces.commit(store, workspace, change, Author(), Deadline.after(10))
        assert await services.workspaces.delete(store, workspace, Deadline.after(10))
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
