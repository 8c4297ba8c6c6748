"""The tool ``code_interpreter`` over HTTP, with the launcher ``process`` and without a sandbox"""

import json

import pytest

from spass.core.messages import ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.sandbox.launchers import missing_for_processes, select_sandbox
from spass.testing.model import Answer
from tests.functions.gateway import Gateway, Reply

needs_processes = pytest.mark.skipif(missing_for_processes() is not None, reason=str(missing_for_processes()))


def execute(gateway: Gateway, code: str, **headers: str) -> Reply:
    body = {"name": "code_interpreter", "arguments": {"code": code}}
    return gateway.send("POST", "/v1/tools/execute", body=body, headers=headers)


@pytest.fixture
def code_gateway(gateway: Gateway) -> Gateway:
    gateway.services.sandbox = select_sandbox({"SPASS_SANDBOX": "process"})
    return gateway


@needs_processes
def test_code_is_run_and_its_output_returned(code_gateway: Gateway) -> None:
    reply = execute(code_gateway, "print(sum(range(101)))")
    assert reply.status == 200
    assert reply.json["result"] == {"output": "5050\n", "error": None, "truncated": 0}


@needs_processes
def test_each_call_has_a_fresh_interpreter_and_an_empty_folder(code_gateway: Gateway) -> None:
    execute(code_gateway, "x = 1; open('left', 'w').close()")
    reply = execute(code_gateway, "import os\nprint(os.listdir('.'))\nprint(x)")
    assert reply.json["result"]["output"] == "[]\n"
    assert "NameError" in reply.json["result"]["error"]


@needs_processes
def test_an_answer_is_stored_under_its_idempotency_key(code_gateway: Gateway) -> None:
    first, second = (execute(code_gateway, "import os\nprint(1)", **{"Idempotency-Key": "k"}) for _ in range(2))
    assert first.json == second.json


def test_without_a_sandbox_the_route_answers_503(gateway: Gateway) -> None:
    gateway.services.sandbox = select_sandbox({"SPASS_SANDBOX": "none"})
    reply = execute(gateway, "print(1)")
    assert (reply.status, reply.code) == (503, "sandbox_unavailable")
    assert "SPASS_SANDBOX is none" in reply.json["error"]["message"]


def test_arguments_are_checked_also_without_a_sandbox(gateway: Gateway) -> None:
    gateway.services.sandbox = select_sandbox({"SPASS_SANDBOX": "none"})
    reply = execute(gateway, " ")
    assert (reply.status, reply.json["error"]["param"]) == (400, "arguments.code")
    assert execute(gateway, "x" * 100_001).status == 400


def call_code_once(request: ChatRequest, _: CallContext) -> Answer:
    if any(message.tool_call_id for message in request.messages):
        return f"The tool said {request.messages[-1].content}"
    call = ToolCallDelta(0, "call_1", "code_interpreter", json.dumps({"code": "print(6 * 7)"}))
    return [ChatDelta(tool_calls=(call,))]


def test_a_model_of_another_kind_reads_why_code_does_not_run(gateway: Gateway) -> None:
    gateway.services.sandbox = select_sandbox({"SPASS_SANDBOX": "none"})
    gateway.model.script = call_code_once
    body = {"input": "How much is 6 * 7?", "agent": "orchestrator", "tools": ["code_interpreter"]}
    reply = gateway.send("POST", "/v1/ask", body=body)
    assert reply.status == 200
    assert "sandbox_unavailable" in reply.json["content"]
    assert reply.json["tool_results"][0]["success"] is False
