"""What ``make costs`` prints: from the templates and counted calls, and as the documents quote it."""

import re
from decimal import Decimal
from pathlib import Path

import pytest

from infra.costs.__main__ import OPTIONS, idle_report, report, request_report
from infra.costs.idle import Template, UnknownPrice, idle_lines
from infra.costs.requests import SWEEP, Counted, read_counts, route_label
from infra.environments import ENVIRONMENTS
from infra.routes import ROUTES

from .conftest import Deployment

ROOT = Path(__file__).parents[2]
MOST = {"dev": 1, "staging": 1, "prod": 3}


def _sum(*templates: Template) -> Decimal:
    """Return the dollars of an idle month, to a millionth: sums of Decimal round."""
    return round(sum((line.dollars for line in idle_lines(templates, Counted())), Decimal()), 6)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_idle_environment_costs_what_the_page_of_operations_says(deployments: dict[str, Deployment], name: str) -> None:
    *_, last = idle_report(deployments[name].templates())
    dollars = last.removesuffix("in all").strip()
    assert Decimal(dollars) < MOST[name]
    rows = re.findall(r"(?m)^\| (`.*`) \| ([\d.]+) \|$", _page().split("| an idle month | USD |", 1)[1].split("\n\n", 1)[0])
    assert [stated for names, stated in rows if f"`{name}`" in names] == [dollars]


def test_the_readme_quotes_the_bill_of_an_idle_month(prod: Deployment) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "```text\n" + "\n".join(idle_report(prod.templates())) + "\n```" in readme


def test_each_amount_on_the_page_of_operations_is_one_that_the_command_prints(deployments: dict[str, Deployment]) -> None:
    printed = "\n".join(line for one in deployments.values() for line in report(one.environment, one.templates()))
    stated = set(re.findall(r"([\d.,]+) USD", _page())) | set(re.findall(r"(?m)^\|.* \| (\d+\.\d\d) \|$", _page()))
    assert len(stated) > 5
    assert {amount for amount in stated if not re.search(rf"(?<![\d.]){re.escape(amount)}(?![\d.]*\d)", printed)} == set()
    for count in re.findall(r"(\d+ metrics) of|with ([\d.]+ million requests)", _page()):
        assert "".join(count) in printed


def _page() -> str:
    return (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_route_has_counted_calls_and_a_price(prod: Deployment) -> None:
    labels = [route_label(route) for route in ROUTES]
    counted = read_counts()
    assert {re.sub(r" \([a-z]+\)$", "", label) for label in counted} == {*labels, SWEEP}
    priced = [line.split("  ")[-1] for line in request_report(prod.templates())]
    assert counted.keys() - {SWEEP} <= set(priced)


def test_a_model_call_costs_more_than_a_read(prod: Deployment) -> None:
    dollars = {
        line.split("  ")[-1]: float(line.split()[0]) for line in request_report(prod.templates()) if line[:8].strip()[0].isdigit()
    }
    assert dollars["POST /v1/chat/completions"] > 5 * dollars["GET /v1/models"] > 5 * 3.70


def test_a_resource_of_an_unknown_type_stops_the_computation(dev: Deployment) -> None:
    with pytest.raises(UnknownPrice, match="AWS::EC2::NatGateway: write the price"):
        idle_lines([*dev.templates(), {"Resources": {"Nat": {"Type": "AWS::EC2::NatGateway"}}}], Counted())


@pytest.mark.parametrize(
    ("kind", "properties", "dollars"),
    [
        ("AWS::KMS::Key", {}, "1.00"),
        ("AWS::WAFv2::WebACL", {"Rules": [{}, {}, {}]}, "8.00"),
        ("AWS::CloudWatch::Alarm", {"MetricName": "Errors"}, "0.10"),
        ("AWS::CloudWatch::Alarm", {"Metrics": [{"MetricStat": {}}, {"MetricStat": {}}, {"Expression": "a + b"}]}, "0.20"),
        ("AWS::Budgets::Budget", {}, "0"),
    ],
    ids=["a key", "a web ACL with three rules", "an alarm", "an alarm of two metrics", "a budget"],
)
def test_an_option_adds_its_price(dev: Deployment, kind: str, properties: dict[str, object], dollars: str) -> None:
    added = {"Resources": {"Added": {"Type": kind, "Properties": properties}}}
    assert _sum(*dev.templates(), added) - _sum(*dev.templates()) == Decimal(dollars)


def test_the_options_cost_what_the_report_says(extended: Deployment, dev: Deployment) -> None:
    alarms = len([*extended.resources("AWS::CloudWatch::Alarm")])
    more = _sum(*extended.templates()) - _sum(*dev.templates())
    options = sum((OPTIONS[name][0] for name in ("snap_start", "key", "waf")), Decimal())
    assert abs(more - options - alarms * Decimal("0.10")) < Decimal("0.00001")


def test_only_options_that_an_environment_has_are_printed(dev: Deployment) -> None:
    lines = [*report(dev.environment, dev.templates())]
    shown = {name for name in OPTIONS if any(f"  {name}: " in line for line in lines)}
    assert shown == {name for name in OPTIONS if hasattr(dev.environment, name)}
