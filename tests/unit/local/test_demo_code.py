"""The demo fails if a model's code does not run or gives a wrong answer, and says so if the gateway runs no code."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from local.demo_calls import DemoFailed, Walk
from local.demo_code import show_code

ANSWERS = {
    "How many lines mention error?": "5 lines.",
    "What is the sum of the column area_km2?": "It is 279.4.",
    "What is the sum of parks?": "It is 92.",
}


@dataclass
class FakeGateway:
    """Answers as a gateway that runs code. ``reason`` says why it cannot; ``output`` is what a cell prints; ``answers``
    are the model's, and ``tool`` is the one that it called."""

    reason: str | None = None
    output: str = "5050\n"
    answers: dict[str, str] = field(default_factory=lambda: {**ANSWERS})
    tool: str = "code_interpreter"
    paths: list[str] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        match request.url.path:
            case "/v1/kinds":
                available = {"available": self.reason is None, "reason": self.reason}
                answer: Any = {"kinds": [{"key": "rlm", **available}]}
            case "/v1/tools/execute":
                answer = {"result": {"output": self.output, "error": None, "truncated": 0}}
            case _:
                body = json.loads(request.content)
                used = [{"tool_name": self.tool}]
                answer = {"kind": body["agent"], "content": self.answers[body["input"]], "tool_results": used}
        return httpx.Response(200, json=answer)

    def show(self) -> None:
        show_code(Walk(httpx.Client(transport=httpx.MockTransport(self.answer), base_url="http://gateway")))


def test_right_answers_from_code_pass() -> None:
    gateway = FakeGateway()
    gateway.show()
    assert gateway.paths == ["/v1/kinds", "/v1/tools/execute", "/v1/ask", "/v1/ask", "/v1/ask"]


def test_a_gateway_without_a_sandbox_is_named_and_asked_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    gateway = FakeGateway(reason="SPASS_SANDBOX is none.")
    gateway.show()
    assert "This gateway runs no code: SPASS_SANDBOX is none." in capsys.readouterr().out
    assert gateway.paths == ["/v1/kinds"]


@pytest.mark.parametrize(
    ("gateway", "reason"),
    [
        (FakeGateway(output="5049\n"), "should be 5050"),
        (FakeGateway(tool="calculator"), "should call code_interpreter; it called calculator"),
        *((FakeGateway(answers={**ANSWERS, question: "7"}), "should say") for question in ANSWERS),
    ],
    ids=["another sum", "another tool", *ANSWERS],
)
def test_code_that_does_not_run_or_a_wrong_answer_fails(gateway: FakeGateway, reason: str) -> None:
    with pytest.raises(DemoFailed, match=reason):
        gateway.show()
