"""The schedule group of managed agents and the role of its entries: their rules hold, and each notices when it is broken."""

import pytest

from infra.environments import ENVIRONMENTS
from infra.routes import Permission

from . import schedule_rules as rules
from .broken_schedules import BREAKS
from .conftest import ROWS, Deployment

WRITERS = {"sweep", "managed.create", "managed.patch"}


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_schedules_keep_their_rules(deployments: dict[str, Deployment], name: str, rule: rules.Rule) -> None:
    assert list(rule(deployments[name])) == []


def test_the_rules_of_schedules_hold_with_every_optional_setting(extended: Deployment) -> None:
    assert [violation for rule in rules.RULES for violation in rule(extended)] == []


def test_few_functions_write_schedules_and_only_the_sweep_reads_them() -> None:
    assert {row.module for row in ROWS if Permission.SCHEDULES_WRITE in row.permissions} == WRITERS
    assert {row.module for row in ROWS if Permission.SCHEDULES_READ in row.permissions} == {"sweep"}
    assert {row.module for row in ROWS if Permission.SCHEDULES_DELETE in row.permissions} == WRITERS | {"managed.delete", "runs"}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, breaks in BREAKS.items() for name in breaks])
def test_a_broken_schedule_is_noticed_by_its_rule(copy: Deployment, rule: rules.Rule, name: str) -> None:
    BREAKS[rule][name](copy)
    assert list(rule(copy)) != []


def test_every_rule_of_schedules_is_shown_to_notice_something() -> None:
    assert set(BREAKS) == set(rules.RULES)
