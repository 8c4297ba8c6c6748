"""The route and the worker that the guide shows, word for word, in a gateway."""

import asyncio
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from spass.core.time import Deadline
from spass.web.app import create_app
from tests.functions.gateway import Gateway

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module that the guide shows for the file ``functions/<name>.py``."""
    (source,) = re.findall(rf"`functions/{name}\.py`:\n\n```python\n(.*?)```", GUIDE, re.DOTALL)
    module = ModuleType(f"documented_{name.replace('/', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


def test_the_route_of_the_guide_answers_and_refuses_as_others_do(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app([load("tokens/whoami", monkeypatch).router], gateway.services)
    reply = gateway.send_to(app, "GET", "/v1/whoami")
    assert (reply.status, reply.json) == (200, {"tenant": "demo", "admin": False})
    assert reply.headers["spass-request-id"].startswith("req_")
    refused = gateway.send_to(app, "GET", "/v1/whoami?tenant=other")
    assert (refused.status, refused.code) == (400, "invalid_request")


def test_the_worker_of_the_guide_logs_one_line(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = load("workers/census", monkeypatch)
    line = asyncio.run(worker.handler.work(gateway.services, {}, Deadline.after(30)))
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == line
    config = gateway.services.config
    assert (line["event"], line["tenants"], line["models"]) == ("census", len(config.tenants), len(config.models))
