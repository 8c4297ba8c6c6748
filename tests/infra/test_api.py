"""The API of every environment keeps its rules, and each rule notices when it is broken."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from aws_cdk import App, Stack, assertions
from aws_cdk import Environment as Target
from aws_cdk import aws_lambda as lambda_

from infra.constructs.api import Api
from infra.environments import DEV, ENVIRONMENTS
from infra.routes import ROUTES, Route
from spass.core import errors

from . import api_rules as rules
from .broken_apis import BREAKS
from .conftest import Deployment


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_api_keeps_its_rules(deployments: dict[str, Deployment], name: str, rule: rules.Rule) -> None:
    assert list(rule(deployments[name])) == []


def test_the_rules_of_the_api_hold_with_every_optional_setting(extended: Deployment) -> None:
    assert [violation for rule in rules.RULES for violation in rule(extended)] == []


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, breaks in BREAKS.items() for name in breaks])
def test_a_broken_api_is_noticed_by_its_rule(copy: Deployment, rule: rules.Rule, name: str) -> None:
    BREAKS[rule][name](copy)
    assert list(rule(copy)) != []


def test_every_rule_of_the_api_is_shown_to_notice_something() -> None:
    assert set(BREAKS) == set(rules.RULES)


def test_every_code_of_a_refusal_is_one_of_the_tree_of_errors() -> None:
    assert {code for _, code in rules.REFUSALS.values()} | {"method_not_allowed"} <= _codes(errors.SpassError)


def _codes(branch: type[errors.SpassError]) -> set[str]:
    return {branch.code}.union(*(_codes(leaf) for leaf in branch.__subclasses__()))


def _deployment_id(routes: Sequence[Route]) -> str:
    """Return the logical id of the deployment of an API with these rows."""
    stack = Stack(App(analytics_reporting=False), "Bare", env=Target(region=DEV.region))
    names = {route.function_name for route in routes}
    arn = f"arn:aws:lambda:{DEV.region}:111122223333:function"
    targets = {name: lambda_.Function.from_function_arn(stack, name, f"{arn}:{name}") for name in names}
    Api(
        stack,
        "Api",
        name="spass-dev",
        routes=routes,
        targets=targets,
        stage="dev",
        rate=1,
        burst=1,
        log_retention=DEV.log_retention,
        log_removal=DEV.log_removal,
        tls=DEV.tls,
        disable_endpoint=False,
    )
    (logical_id,) = assertions.Template.from_stack(stack).find_resources("AWS::ApiGateway::Deployment")
    return str(logical_id)


def test_exactly_a_change_of_the_body_creates_a_new_deployment() -> None:
    before, last = _deployment_id(ROUTES), ROUTES[-1]
    assert _deployment_id([replace(route, permissions=frozenset()) for route in ROUTES]) == before
    assert _deployment_id(ROUTES[:-1]) != before, "a route is removed"
    assert _deployment_id([*ROUTES[:-1], replace(last, method="PUT")]) != before, "a method is changed"
    assert _deployment_id([*ROUTES[:-1], replace(last, function="another")]) != before, "a function is changed"
    assert _deployment_id([replace(row, long=False) for row in ROUTES]) != before, "no route streams"
