"""The hourly sweep, as Lambda calls it, over the tenants of a whole gateway."""

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from functions.workers import sweep
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.rag.write.sweep import GARBAGE_SECONDS
from spass.web.worker_function import WorkerFunction, worker_handler
from tests.functions.gateway import Gateway

DOCUMENTS = "/a1/rag/indices/books/documents"
SEGMENT_OBJECTS = 5


@pytest.fixture
def hourly(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerFunction]:
    """An hour from now."""
    monkeypatch.setattr("functions.workers.sweep.now_s", lambda: int(time.time()) + GARBAGE_SECONDS + 60)
    handler = worker_handler(sweep.work, gateway.services)
    yield handler
    handler.close()


def invoke(handler: WorkerFunction, milliseconds: int = 900_000) -> dict[str, Any]:
    context: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: milliseconds)
    answer = handler({}, context)
    assert isinstance(answer, dict)
    return dict(answer)


def replaced_twice(gateway: Gateway, token: str) -> None:
    for text in ("old", "new"):
        gateway.send("POST", DOCUMENTS, body={"documents": [{"id": "a", "text": text}]}, token=token)


def test_every_tenant_is_swept_and_one_line_says_what_went(
    gateway: Gateway, hourly: WorkerFunction, capsys: pytest.CaptureFixture[str]
) -> None:
    for token in ("demo-admin-token", "other-token"):
        replaced_twice(gateway, token)
    capsys.readouterr()
    counts = invoke(hourly)
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line == counts
    assert (line["event"], line["tenants"], line["swept"], line["retired"]) == ("swept", 3, 3, 2 * SEGMENT_OBJECTS)
    found = gateway.send("GET", f"{DOCUMENTS}/a", token="other-token").json
    assert found["text"] == "new"
    assert invoke(hourly)["retired"] == 0


def test_one_tenants_failure_is_not_the_next_ones(
    gateway: Gateway, hourly: WorkerFunction, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced_twice(gateway, "demo-admin-token")
    for_tenant = gateway.services.aws.for_tenant

    def broken(tenant: TenantId) -> object:
        if tenant == "other":
            raise StorageUnavailable("down")
        return for_tenant(tenant)

    monkeypatch.setattr(gateway.services.aws, "for_tenant", broken)
    counts = invoke(hourly)
    assert (counts["swept"], counts["failed"], counts["retired"]) == (2, 1, SEGMENT_OBJECTS)
    assert '"event":"sweep_failed"' in capsys.readouterr().out


def test_a_sweep_ends_when_its_time_does(gateway: Gateway, hourly: WorkerFunction) -> None:
    replaced_twice(gateway, "demo-admin-token")
    assert "swept" not in invoke(hourly, milliseconds=1000)
