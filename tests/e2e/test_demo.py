"""Run ``make demo``: it shows the main features, fails if one does not work, and changes no data of other gateways."""

import os
import subprocess
import sys

from local.home import ROOT
from spass.sandbox.launchers import select_sandbox
from tests.e2e.conftest import Gateway

FACTS = (
    "gebaut 1791",
    "potsdam.md#",
    '"status": "succeeded"',
    '"confirm_required": true',
    "» Mein Lieblingssport ist Tennis.",
    "← 308",
    "messages 1 to 4 are summarised as",
    "continues with it",
    "368 Metern",
    "= 30447",
    "» A note: 1791 times 17 is 30447.",
    '"params": {"mode": "structured"}',
    '{"type": "token", "content": "I need a tool for that.", "step": 1}',
    '{"type": "done", ',
    "The connection was closed after event 1-4. The turn continues without it.",
    "Last-Event-ID: 1-4",
    '{"status": "cancelling"}',
    '"finish_reason": "cancelled"',
    "24 hours",
    "└ tool rag_query: ok",
    "  └ embedding all-minilm-l6-v2: ok",
    '"added": 6, "changed": 0, "deleted": 0}',
    '+    """Run the program."""',
    '"approval_required": true',
    "This waits for a person's approval",
    '"status": "denied"',
    '"status": "executed"',
    "version 2: Add a docstring to main()",
    '"key": "pump", "content": "The pump in the cellar was repaired on Tuesday."',
    '"operator_id": "demo-walk"',
    'tool_calls {"calls":[{"id":"call_',
    '"finish_reason":"stop"}]',
    '"status": "succeeded", "trigger": "run"',
    '"status": "succeeded", "trigger": "schedule"',
    "Every answer follows",
)

CODE_FACTS = ('"output": "5050\\n"', "» 5 lines mention error.", "» The sum of area_km2 is 279.4.", "» The sum of parks is 92.")
"""The lines of the demo on a machine that can run code."""


def test_the_demo_shows_the_main_features_on_its_own_gateway(gateway: Gateway) -> None:
    before = _indices(gateway)
    other_gateway = {"PORT": str(gateway.port), "SPASS_HOME": str(gateway.home), "OPENAI_API_KEY": "never-sent"}
    result = _demo(other_gateway | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert result.returncode == 0, result.stdout + result.stderr
    reason = select_sandbox().unavailable
    for fact in (*FACTS, *(CODE_FACTS if reason is None else [f"This gateway runs no code: {reason}"])):
        assert fact in result.stdout
    assert gateway.url not in result.stdout
    assert _indices(gateway) == before


def test_the_demo_on_a_given_gateway_lists_the_data_that_it_replaces(gateway: Gateway) -> None:
    """The test stops the demo at its first heading, because the rest is the same as on its own gateway."""
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
    for word in (gateway.url, "berlin-info", "gateway-docs", "demo-walk", "demo-user"):
        assert word in "".join(lines)


def test_the_demo_fails_with_a_clear_message_without_a_gateway() -> None:
    result = _demo({}, "--url", "http://127.0.0.1:9")
    assert result.returncode == 1
    assert "The demo failed" in result.stderr
    assert "Traceback" not in result.stderr


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
