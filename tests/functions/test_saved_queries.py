"""The saved queries read fields that real lines of the gateway have, and select the lines that they are for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from infra.queries import QUERIES, REQUEST, Logs
from spass.tenancy.config_file import load_gateway_config
from spass.web.startup import log_startup_failure
from tests.functions.gateway import Gateway
from tests.insights import fields_read, flattened, selects

Line = dict[str, Any]
QUERY: Final = {query.name: query.lines for query in QUERIES}
OF_LAMBDA: Final[Line] = {"type": "platform.initReport", "record.status": "error", "record.errorType": "Runtime.ExitError"}
"""Lambda's line of a failed start (https://docs.aws.amazon.com/lambda/latest/dg/telemetry-schema-reference.html)."""


@pytest.fixture
def lines(gateway: Gateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[Line]:
    """Return the lines of a paid chat with a tool's call, of the next one, which the budget refuses, and of two failed starts."""
    gateway.services.settings = replace(gateway.services.settings, telemetry=True)
    gateway.set_config(monthly_budget_usd=0.000001)
    for status in (200, 429):
        assert gateway.send("POST", "/a1/agents/plain/chat", body={"message": "Hi"}).status == status
    assert (
        gateway.send("POST", "/v1/tools/execute", body={"name": "calculator", "arguments": {"expression": "1+1"}}).status == 200
    )
    broken = tmp_path / "gateway.yaml"
    broken.write_text("llm: 7\n", encoding="utf-8")
    with pytest.raises(SystemExit), log_startup_failure():
        load_gateway_config(broken)
    with pytest.raises(SystemExit), log_startup_failure():
        raise OSError(28, "No space left on device")
    return [flattened(json.loads(line)) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("query", [query for query in QUERIES if query.logs is not Logs.ACCESS], ids=lambda query: query.name)
def test_a_query_of_functions_reads_fields_that_their_lines_have(query: Any, lines: list[Line]) -> None:
    written = {name for line in [*lines, OF_LAMBDA, {"gateway_request_id": ""}] for name in line}
    assert fields_read(query.lines) - written == set()


def test_the_query_of_costs_selects_the_ends_of_model_calls_with_numbers(lines: list[Line]) -> None:
    (paid,) = [line for line in lines if selects(QUERY["cost-by-tenant"], line)]
    assert (paid["event"], paid["tenant"], paid["model"]) == ("inference_end", "demo", "small")
    assert all(type(paid[name]) in (int, float) for name in ("cost_usd", "prompt_tokens", "completion_tokens"))


def test_the_query_of_refusals_selects_the_request_that_a_limit_refused(lines: list[Line]) -> None:
    (refused,) = [line for line in lines if selects(QUERY["refusals-by-bound"], line)]
    assert (refused["status"], refused["tenant"], refused["limit"]) == (429, "demo", "monthly_budget_usd")


def test_the_query_of_failed_starts_selects_ours_and_those_that_lambda_reports(lines: list[Line]) -> None:
    failed = [line for line in lines if selects(QUERY["failed-starts"], line)]
    assert [line.get("errno_name") or line["problems.0.file"] for line in failed] == ["gateway.yaml", "ENOSPC"]
    assert selects(QUERY["failed-starts"], OF_LAMBDA)
    assert not selects(QUERY["failed-starts"], OF_LAMBDA | {"record.status": "success"})


def test_the_query_of_one_request_selects_its_own_line_and_those_of_its_calls(lines: list[Line]) -> None:
    chat = next(line for line in lines if line.get("route") == "/a1/agents/{name}/chat" and line.get("status") == 200)
    query = [command.replace(REQUEST, chat["request_id"]) for command in QUERY["one-request"]]
    found = [line for line in lines if selects(query, line)]
    assert {line.get("event") for line in found} == {None, "call", "inference_end", "agent_turn_end", "trace"}
    assert chat in found
