"""Statements that the seed makes about OperativeAgent and MonitorOperativeAgent, through a public surface.

Where the page about operators and the seed differ, the page decides: the session store and the memory backend belong to the
driver, and the state reaches the model as data. Session and state are in ``test_operators``, the axes in
``test_operator_axes``, the defaults of all parameters in ``test_code_kinds_of_the_seed``.
"""

from typing import Any, Final

import pytest

from spass.agents.kinds.monitor_operative import MONITOR_SYSTEM_PROMPT
from spass.calls.datamark import NOTE
from spass.core.messages import Role
from spass.testing.model import calls, in_turn
from tests.functions.gateway import Gateway
from tests.functions.operator_runs import ask

KINDS_OF_OPERATORS: Final = ("operative", "monitor_operative")
AXES: Final = {
    "memory_extraction": ["causality_graph", "scratchpad", "structured_json", "none"],
    "observation_compression": ["summarize", "truncate", "none"],
    "retrieval_strategy": ["hybrid_with_self_eval", "keyword", "semantic", "none"],
    "task_decomposition": ["phased", "monolithic", "hierarchical"],
}
"""The valid values of the seed's table. The first of each is the default."""


def prompt(gateway: Gateway, request: int = -1) -> str:
    system = gateway.model.requests[request].messages[0]
    assert system.role is Role.SYSTEM
    return system.content.removesuffix(NOTE).rstrip()


@pytest.mark.parametrize("kind", KINDS_OF_OPERATORS)
def test_the_tool_loop_is_that_of_the_orchestrator(gateway: Gateway, kind: str) -> None:
    sent: dict[str, Any] = {}
    for key in ("orchestrator", kind):
        gateway.model.requests.clear()
        gateway.model.script = in_turn([calls(("calculator", {"expression": "6*7"})), "It is 42."])
        body = {"tools": ["calculator"], "params": {"temperature": 0.3, "max_tokens": 100}}
        answer = ask(gateway, "6*7?", kind=key, body=body).json
        requests = [(request.tools, request.temperature, request.messages) for request in gateway.model.requests]
        loop = [
            (tools, temperature, [(message.role, message.content) for message in messages if message.role is not Role.SYSTEM])
            for tools, temperature, messages in requests
        ]
        sent[key] = (loop, answer["content"], answer["turns"], [tool["content"] for tool in answer["tool_results"]])
    assert sent[kind] == sent["orchestrator"]


@pytest.mark.parametrize(("axis", "values"), AXES.items())
def test_the_axes_have_the_values_and_defaults_of_the_table(gateway: Gateway, axis: str, values: list[str]) -> None:
    (listed,) = [entry for entry in gateway.send("GET", "/v1/kinds").json["kinds"] if entry["key"] == "monitor_operative"]
    schema = listed["params"]["properties"][axis]
    assert (schema["default"], sorted(schema["enum"])) == (values[0], sorted(values))
    for value in values:
        body = {"input": "Hi", "agent": "monitor_operative", "params": {axis: value}}
        assert gateway.send("POST", "/v1/ask", body=body).status == 200


def test_the_system_prompt_has_the_strategy_and_describes_the_tools(gateway: Gateway) -> None:
    for value in AXES["task_decomposition"]:
        body = {"params": {"task_decomposition": value}, "tools": ["calculator"]}
        assert ask(gateway, "Hi", kind="monitor_operative", body=body).status == 200
    tools = {tool["function"]["name"]: tool["function"] for tool in gateway.send("GET", "/v1/tools").json["tools"]}
    prompts = [prompt(gateway, number) for number in range(3)]
    assert len(set(prompts)) == 3
    assert all(text.startswith(MONITOR_SYSTEM_PROMPT) for text in prompts)
    assert all(f"- calculator: {tools['calculator']['description'].partition(chr(10))[0]}" in text for text in prompts)


def test_a_custom_system_prompt_replaces_the_default(gateway: Gateway) -> None:
    ask(gateway, "Hi", kind="monitor_operative", body={"system_prompt": "Be brief."})
    assert prompt(gateway).startswith("Be brief.\n\n")
    assert MONITOR_SYSTEM_PROMPT not in prompt(gateway)


def test_findings_are_stored_after_each_tool_call(gateway: Gateway) -> None:
    numbers = [calls(("calculator", {"expression": f"factorial({number})"})) for number in (40, 41, 42)]
    kept: list[int] = []

    def count() -> int:
        return sum(str(item["sk"]).startswith("NOTE#") for item in gateway.items())

    steps = iter([*numbers, "Done."])

    def script(*_: object) -> Any:
        kept.append(count())
        return next(steps)

    gateway.model.script = script
    body = {"params": {"operator_id": "asked", "memory_extraction": "scratchpad"}, "tools": ["calculator"]}
    assert ask(gateway, "Hi", kind="monitor_operative", body=body).status == 200
    assert kept == [0, 1, 2, 3]
