"""Invocations over HTTP, as the emulator sends them, and the visibility of messages in work."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

import functions.workers.jobs
from infra.workers import WORKERS
from local.message_visibility import MessageVisibility
from local.workers import Workers
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.services import Services
from spass.web.startup import worker_handler
from tests.unit.local.configs import write_config_with_a_notice

Answer = Callable[[Mapping[str, Any], Deadline], Awaitable[Json]]
ReplaceWorker = Callable[[Answer], None]
JOBS = "spass-local-worker-jobs"
QUEUE = "http://localhost:4566/000000000000/jobs"
COMPACTIONS = "http://localhost:4566/000000000000/compactions"


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    with workers.serving([QUEUE]):
        yield workers


@pytest.fixture
def replace_worker(monkeypatch: pytest.MonkeyPatch) -> ReplaceWorker:
    """Return a function that replaces the work of the queue's worker."""

    def replace(answer: Answer) -> None:
        async def work(_: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
            return await answer(event, deadline)

        monkeypatch.setattr(functions.workers.jobs, "handler", worker_handler(work))

    return replace


def _invoke(workers: Workers, event: Json, *, seconds: float = 900) -> httpx.Response:
    headers = {"X-Amzn-Lambda-Deadline-Ms": str(int((time.time() + seconds) * 1000))}
    return httpx.post(workers.urls[JOBS], json=event, headers=headers, timeout=30, trust_env=False)


def test_every_worker_has_a_url_by_its_functions_name() -> None:
    workers = Workers()
    with workers.serving([QUEUE]):
        urls = workers.urls
    assert set(urls) == {f"spass-local-{worker.function_name}" for worker in WORKERS}
    assert all(url.startswith("http://127.0.0.1:") for url in urls.values())


def test_an_invocation_returns_the_workers_answer(workers: Workers, replace_worker: ReplaceWorker) -> None:
    async def answer(event: Mapping[str, Any], deadline: Deadline) -> Json:
        return {"event": dict(event), "seconds": deadline.remaining()}

    replace_worker(answer)
    start = time.monotonic()
    answered = _invoke(workers, {"job": "merge"}, seconds=100).json()
    elapsed = time.monotonic() - start
    assert answered["event"] == {"job": "merge"}
    # The worker reserves 30 of the 100 seconds.
    assert 69.9 - elapsed < answered["seconds"] < 70.1


def test_the_workers_do_not_log_the_notices_that_the_banner_shows(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(services: Services, _: Mapping[str, Any], __: Deadline) -> Json:
        return len(services.config.warnings)

    monkeypatch.setattr(functions.workers.jobs, "handler", worker_handler(work))
    file = tmp_path / "gateway.yaml"
    write_config_with_a_notice(file)
    monkeypatch.setenv("SPASS_CONFIG", str(file))
    assert _invoke(workers, {}).json() == 1
    assert capsys.readouterr().out == ""


def test_an_early_invocation_waits_until_the_workers_serve(replace_worker: ReplaceWorker) -> None:
    async def answer(_event: Mapping[str, Any], _deadline: Deadline) -> Json:
        return "done"

    replace_worker(answer)
    workers = Workers()
    answers: list[Json] = []
    early = threading.Thread(target=lambda: answers.append(_invoke(workers, {}).json()))
    early.start()
    time.sleep(0.2)
    assert answers == []
    with workers.serving([QUEUE]):
        early.join(10)
    assert answers == ["done"]


def test_concurrent_invocations_share_one_loop_and_the_services(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=10)
    seen: list[object] = []

    async def work(services: Services, _: Mapping[str, Any], __: Deadline) -> Json:
        seen.append((asyncio.get_running_loop(), services))
        await asyncio.to_thread(both.wait)
        return None

    monkeypatch.setattr(functions.workers.jobs, "handler", worker_handler(work))
    threads = [threading.Thread(target=_invoke, args=[workers, {}]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_a_failure_is_answered_to_the_emulator_and_logged(
    workers: Workers, replace_worker: ReplaceWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(_event: Mapping[str, Any], _deadline: Deadline) -> Json:
        raise ValueError("a text that may hold anything")

    replace_worker(answer)
    answered = _invoke(workers, {})
    assert answered.status_code == 500
    assert answered.json()["errorType"] == "ValueError"
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (line["event"], line["worker"], line["level"]) == ("worker_failed", "worker-jobs", "error")
    assert line["exception"] == "ValueError"
    assert "anything" not in answered.text + json.dumps(line)


def test_a_stop_cancels_a_running_invocation_and_its_cleanup_runs(replace_worker: ReplaceWorker) -> None:
    started, ended = threading.Event(), threading.Event()

    async def answer(_event: Mapping[str, Any], _deadline: Deadline) -> Json:
        try:
            started.set()
            await asyncio.sleep(60)
        finally:
            ended.set()
        return None

    replace_worker(answer)
    workers = Workers()
    answers: list[int] = []
    with workers.serving([QUEUE]):
        waiting = threading.Thread(target=lambda: answers.append(_invoke(workers, {}).status_code))
        waiting.start()
        assert started.wait(10)
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 3
    assert ended.is_set()
    waiting.join(10)
    assert answers == [503]


def test_messages_are_hidden_again_while_a_worker_works_on_them() -> None:
    hidden: list[tuple[str, str]] = []
    messages = [("first", "jobs"), ("second", "compactions")]
    event = {"Records": [{"receiptHandle": handle, "eventSourceARN": f"arn:aws:sqs:x:0:{queue}"} for handle, queue in messages]}

    async def work() -> int:
        async with MessageVisibility([QUEUE, COMPACTIONS], renew_seconds=0.01, extend=hidden.append).hide(event):
            while len(hidden) < 4:
                await asyncio.sleep(0.01)
        return len(hidden)

    count = asyncio.run(work())
    assert hidden[:4] == [(QUEUE, "first"), (COMPACTIONS, "second")] * 2
    assert len(hidden) == count


def test_an_event_without_messages_hides_nothing() -> None:
    hidden: list[object] = []

    async def work() -> None:
        async with MessageVisibility([QUEUE], renew_seconds=0.0, extend=hidden.append).hide({"step": "part"}):
            await asyncio.sleep(0.05)

    asyncio.run(work())
    assert hidden == []


def test_only_the_emulator_can_invoke_a_worker(workers: Workers, replace_worker: ReplaceWorker) -> None:
    events: list[object] = []

    async def answer(event: Mapping[str, Any], _deadline: Deadline) -> Json:
        events.append(event)
        return None

    replace_worker(answer)
    url = httpx.URL(workers.urls[JOBS])
    name = url.path.rpartition("/")[2]
    deadline = {"X-Amzn-Lambda-Deadline-Ms": str(int((time.time() + 900) * 1000))}
    for path, headers in (
        (f"/{name}", {}),
        (f"/guessed/{name}", {}),
        (url.path.replace(name, "worker-unknown"), {}),
        (url.path, {"Host": "evil.example"}),
        (url.path, {"Origin": "https://evil.example"}),
    ):
        refused = httpx.post(url.copy_with(path=path), json={}, headers={**deadline, **headers}, timeout=30, trust_env=False)
        assert refused.status_code == 403
    assert not events
    assert _invoke(workers, {"asked": "by the emulator"}).is_success
    assert events == [{"asked": "by the emulator"}]


def _connect(workers: Workers) -> socket.socket:
    url = httpx.URL(workers.urls[JOBS])
    return socket.create_connection((url.host, url.port), timeout=10)


def test_idle_connections_are_bounded_and_keep_no_worker_from_its_work(workers: Workers, replace_worker: ReplaceWorker) -> None:
    async def answer(_event: Mapping[str, Any], _deadline: Deadline) -> Json:
        return "done"

    replace_worker(answer)
    before = threading.active_count()
    connections = [_connect(workers) for _ in range(100)]
    try:
        assert all(connection.recv(1) == b"" for connection in connections[:68]), "the oldest are closed"
        assert threading.active_count() - before < 50
        assert _invoke(workers, {}).json() == "done"
    finally:
        for connection in connections:
            connection.close()


def test_a_head_that_does_not_end_is_cut_off_but_a_long_invocation_is_not(
    workers: Workers, replace_worker: ReplaceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = threading.Event()

    async def answer(_event: Mapping[str, Any], _deadline: Deadline) -> Json:
        return await asyncio.to_thread(cut.wait, 10)

    monkeypatch.setattr("local.workers._HEAD_SECONDS", 0.1)
    replace_worker(answer)
    answers: list[Json] = []
    long = threading.Thread(target=lambda: answers.append(_invoke(workers, {}).json()))
    long.start()
    with _connect(workers) as connection:
        connection.sendall(b"POST /guessed HTTP/1.1\r\nHost: x")
        assert connection.recv(1) == b""
    cut.set()
    long.join(10)
    assert answers == [True]
