"""The function that runs the code of models: its rules hold, and each of them notices when it is broken."""

import json

import pytest

from infra.environments import ENVIRONMENTS
from infra.routes import Permission
from infra.template import PATH

from . import sandbox_rules as rules
from .broken_sandboxes import BREAKS
from .conftest import ROWS, Deployment

RUN_CODE = {
    "chat.completions",
    "ask.create",
    "agents.chat",
    "sessions.append",
    "streams.create",
    "streams.job_card",
    "tools.execute",
    "managed.message_send",
    "runs",
}
"""The routes and the worker that run agents or tools."""


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_sandbox_keeps_its_rules(deployments: dict[str, Deployment], name: str, rule: rules.Rule) -> None:
    assert list(rule(deployments[name])) == []


def test_the_rules_hold_with_every_optional_setting(extended: Deployment) -> None:
    assert [violation for rule in rules.RULES for violation in rule(extended)] == []


def test_routes_that_run_agents_or_tools_and_the_sweep_may_run_code() -> None:
    assert {row.module for row in ROWS if Permission.SANDBOX in row.permissions} == RUN_CODE | {"sweep"}
    assert {row.module for row in ROWS if Permission.SANDBOX_NAME in row.permissions} == RUN_CODE | {
        "sweep",
        "kinds.list",
        "agents.list",
        "agents.get",
        "managed.run",
    }


def test_the_laptops_template_has_no_sandbox_and_no_network() -> None:
    text = PATH.read_text(encoding="utf-8")  # a test compares it with a fresh synthesis
    assert not [one for one in json.loads(text)["Resources"].values() if one["Type"].startswith("AWS::EC2::")]
    assert "sandbox" not in text.lower()


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, breaks in BREAKS.items() for name in breaks])
def test_a_broken_sandbox_is_noticed_by_its_rule(copy: Deployment, rule: rules.Rule, name: str) -> None:
    BREAKS[rule][name](copy)
    assert list(rule(copy)) != []


def test_every_rule_is_shown_to_notice_something() -> None:
    assert set(BREAKS) == set(rules.RULES)
