"""The laptop's app reads the operator's files at its start and leaves warnings to the banner. Its server stops in order."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Final

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from local.home import ROOT
from local.server import local_services, server
from spass.web.exchange import EdgeMiddleware
from tests.unit.local.configs import write_config_with_a_notice

SECONDS: Final = 20


def test_a_warning_is_not_logged_because_the_banner_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    write_config_with_a_notice(file)
    monkeypatch.setenv("SPASS_CONFIG", str(file))
    monkeypatch.setenv("SPASS_AGENTS", str(ROOT / "agents"))
    (notice,) = local_services().config.warnings
    assert "unpriced has no price" in str(notice)
    assert capsys.readouterr().out == ""


class SlowApp:
    """An app that never answers. When its request is cancelled, it needs some time to clean up."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.has_cleaned_up = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError  # no lifespan
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)
            self.has_cleaned_up.set()


def test_a_request_that_the_stop_ends_cleans_up_and_is_answered_and_logs_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    app, answers = SlowApp(), list[httpx.Response]()
    running = server(EdgeMiddleware(app))
    running.config.timeout_graceful_shutdown = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = threading.Thread(target=running.run, args=[[listener]])
        asking = threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=SECONDS)))
        serving.start()
        asking.start()
        assert app.has_begun.wait(SECONDS)
        running.should_exit = True
        asking.join(SECONDS)
        serving.join(SECONDS)
    assert app.has_cleaned_up.is_set()
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(500, "internal_error")]
    assert "stopped before the answer ended" in answers[0].json()["error"]["message"]
    assert "CancelledError" not in capsys.readouterr().out
