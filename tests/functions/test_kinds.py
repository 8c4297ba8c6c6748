"""GET /v1/kinds lists every agent kind with the defaults that its page promises."""

from dataclasses import dataclass
from typing import Any, Literal

import jsonschema_rs
import pytest

from spass.agents.kinds import KINDS, AgentContext, BaseAgent, parameter
from spass.core.effects import Answer, Infer, Steps
from tests.functions.gateway import Gateway

# key, accepts_tools, multi_turn: the table of the page. test_code_kinds_of_the_seed has the defaults of all parameters.
TABLE = [
    *(("simple", False, False), ("orchestrator", True, True), ("native_react", True, True), ("react", True, True)),
    *(("native_openhands", True, True), ("rlm", True, True), ("openhands", False, True), ("claude_code", False, True)),
    *(("operative", True, True), ("monitor_operative", True, True)),
]
FOREIGN = ("openhands", "claude_code")
"""The kinds that a gateway without ``harnesses`` in its file cannot run."""
SAMPLING = {"temperature": (0, 2), "max_tokens": (1, 2**31 - 1), "max_turns": (1, 100)}


def kinds(gateway: Gateway) -> list[dict[str, Any]]:
    reply = gateway.send("GET", "/v1/kinds", token="chat-only-token")
    assert reply.status == 200
    assert set(reply.json) == {"kinds"}
    listed: list[dict[str, Any]] = reply.json["kinds"]
    return listed


def test_it_lists_the_kinds_of_the_table_in_order(gateway: Gateway) -> None:
    listed = kinds(gateway)
    assert [(kind["key"], kind["accepts_tools"], kind["multi_turn"]) for kind in listed] == TABLE
    assert [kind["key"] for kind in listed] == list(KINDS.keys())


def test_each_kind_has_a_description_and_is_available(gateway: Gateway) -> None:
    for kind in kinds(gateway):
        assert set(kind) == {"key", "description", "accepts_tools", "multi_turn", "params", "available", "reason"}
        assert kind["description"].endswith(".")
        assert "\n" not in kind["description"]
        if kind["key"] in FOREIGN:
            assert not kind["available"]
            assert "harnesses: {roots:" in kind["reason"]
        else:
            assert (kind["available"], kind["reason"]) == (True, None)


@pytest.mark.parametrize("key", [row[0] for row in TABLE])
def test_params_is_a_json_schema_with_bounds_that_accepts_its_own_defaults(gateway: Gateway, key: str) -> None:
    (schema,) = [kind["params"] for kind in kinds(gateway) if kind["key"] == key]
    jsonschema_rs.meta.validate(schema)
    defaults = {name: parameter["default"] for name, parameter in schema["properties"].items()}
    jsonschema_rs.validate(schema, defaults)
    jsonschema_rs.validate(schema, {})
    assert not jsonschema_rs.is_valid(schema, {"system_prompt": "A file or a request names it elsewhere."})
    for name, (least, most) in SAMPLING.items():
        if name == "max_turns" and key in FOREIGN:
            assert not jsonschema_rs.is_valid(schema, {name: 1})
            continue
        assert jsonschema_rs.is_valid(schema, {name: least})
        assert jsonschema_rs.is_valid(schema, {name: most})
        assert not jsonschema_rs.is_valid(schema, {name: least - 1})
        assert not jsonschema_rs.is_valid(schema, {name: most + 1})
        assert schema["properties"][name]["description"]


@dataclass(frozen=True, kw_only=True)
class Whisper(BaseAgent):
    """Answer quietly.

    This line is not part of the description.
    """

    tone: Literal["high", "low"] = parameter("low", "The pitch.")

    def steps(self, input: str, context: AgentContext) -> Steps:
        reply = yield Infer(self.opening(input, context))
        return Answer(reply.content.lower())


def test_a_registered_kind_is_listed_last_with_its_own_parameters(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS, "_registered", {"whisper": Whisper})
    kind = kinds(gateway)[-1]
    assert (kind["key"], kind["description"], kind["accepts_tools"]) == ("whisper", "Answer quietly.", False)
    tone = kind["params"]["properties"]["tone"]
    assert (tone["enum"], tone["default"], tone["description"]) == (["high", "low"], "low", "The pitch.")
    assert "max_turns" not in kind["params"]["properties"]


def test_it_needs_a_token(gateway: Gateway) -> None:
    assert gateway.send("GET", "/v1/kinds", token=None).code == "missing_token"
