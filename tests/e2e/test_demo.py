"""`make demo` shows the whole main job, would say so if it did not hold, and leaves everybody's data alone."""

import os
import subprocess
import sys

from local.home import ROOT
from tests.e2e.conftest import Gateway

FACTS = (
    "gebaut 1791",
    "potsdam.md#",
    '"status": "succeeded"',
    '"confirm_required": true',
    "Dein Lieblingssport ist Tennis",
    "← 308",
    "messages 1 to 4 are summarised as",
    "continues with it",
    "368 Metern",
    "= 30447",
    "24 hours",
    "└ tool rag_query: ok",
    "  └ embedding all-minilm-l6-v2: ok",
    "Every answer follows",
)


def test_the_demo_walks_through_the_main_job_on_a_gateway_of_its_own(gateway: Gateway) -> None:
    before = _indices(gateway)
    theirs = {"PORT": str(gateway.port), "SPASS_HOME": str(gateway.home), "OPENAI_API_KEY": "never-sent"}
    ended = _demo(theirs | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for fact in FACTS:
        assert fact in ended.stdout
    assert gateway.url not in ended.stdout
    assert _indices(gateway) == before


def test_the_demo_on_a_named_gateway_says_what_it_replaces(gateway: Gateway) -> None:
    """The rest of the demo is the same as on a gateway of its own, so the test ends it at its first heading."""
    lines: list[str] = []
    with subprocess.Popen(
        _command("--url", gateway.url), cwd=ROOT, env=_environment({}), stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "===" in line:
                break
            lines.append(line)
        demo.kill()
    for word in (gateway.url, "berlin-info", "gateway-docs", "demo-user"):
        assert word in "".join(lines)


def test_a_gateway_that_is_not_there_is_said_clearly() -> None:
    ended = _demo({}, "--url", "http://127.0.0.1:9")
    assert ended.returncode == 1
    assert "The demo failed" in ended.stderr
    assert "Traceback" not in ended.stderr


def _demo(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        _command(*arguments),
        cwd=ROOT,
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-u", "-m", "local.demo", *arguments]


def _environment(changes: dict[str, str]) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), str(ROOT)])} | changes


def _indices(gateway: Gateway) -> object:
    with gateway.client() as client:
        return client.get("/a1/rag/indices").raise_for_status().json()["indices"]
