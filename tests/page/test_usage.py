"""The usage view: its figures are those of ``GET /v1/usage``."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Gateway
from tests.page.accessibility import grave_findings
from tests.page.tab import Tab


def ask(gateway: Gateway, agent: str) -> None:
    with gateway.client(user="counter") as client:
        session = client.post(f"/a1/agents/{agent}/sessions", json={}).raise_for_status().json()["id"]
        client.post(f"/a1/agents/{agent}/sessions/{session}/messages", json={"message": "Hello"}).raise_for_status()


def usage_of(gateway: Gateway, **query: str) -> dict[str, Any]:
    with gateway.client() as client:
        report: dict[str, Any] = client.get("/v1/usage", params=query).raise_for_status().json()
    return report


def amount(usd: str) -> str:
    """Return an amount as the page shows it."""
    digits = Decimal(usd)
    return f"${digits if not digits else Decimal(f'{digits:.1e}').normalize():f}"


def figures(row: Locator) -> list[str]:
    """Return requests, cost, and the tokens in total, of prompts and of answers."""
    requests, cost, total, _bar, prompt, answer = row.get_by_role("cell").all_text_contents()
    return [requests, cost, total, prompt, answer]


def expected(report: dict[str, Any]) -> list[str]:
    tokens = [report[name] for name in ("total_tokens", "prompt_tokens", "completion_tokens")]
    return [f"{report['requests']:,}", amount(report["cost_usd"]), *(f"{count:,}" for count in tokens)]


def days(number: int) -> dict[str, str]:
    today = datetime.now(UTC).date()
    return {"from": (today - timedelta(days=number - 1)).isoformat(), "to": today.isoformat()}


def test_totals_are_those_of_the_route(tab: Tab, standin: Gateway) -> None:
    for agent in ("concise-de", "berlin-tour"):
        ask(standin, agent)
    tab.sign_in(fragment="#/usage")
    by_agent = tab.page.get_by_role("region", name="Usage by agent")
    expect(by_agent.get_by_role("row").last).to_contain_text("Total")
    report = usage_of(standin, **days(7))
    assert figures(by_agent.get_by_role("row").last) == expected(report["total"])
    for group in report["usage"]:
        row = by_agent.get_by_role("row").filter(has_text=group["key"] or "without an agent").first
        assert figures(row) == expected(group)
    by_day = tab.page.get_by_role("region", name="Usage by day")
    expect(by_day.get_by_role("row")).to_have_count(7 + 2)
    assert figures(by_day.get_by_role("row").last) == expected(report["total"])


def test_days_without_calls_are_zero_in_every_period(tab: Tab, standin: Gateway) -> None:
    ask(standin, "concise-de")
    tab.sign_in(fragment="#/usage")
    by_day = tab.page.get_by_role("region", name="Usage by day")
    for period in (30, 90, 7):
        tab.page.get_by_role("link", name=f"{period} days").click()
        expect(by_day.get_by_role("row")).to_have_count(period + 2)
        first_day = days(period)["from"]
        assert figures(by_day.get_by_role("row").filter(has_text=first_day)) == ["0", "$0", "0", "0", "0"]


def test_days_are_filtered_by_agent_and_a_reload_keeps_it(tab: Tab, standin: Gateway) -> None:
    ask(standin, "concise-de")
    ask(standin, "berlin-tour")
    tab.sign_in(fragment="#/usage/30")
    tab.page.get_by_role("combobox", name="Agent").select_option("concise-de")
    expect(tab.page).to_have_url(f"{standin.url}/ui#/usage/30/concise-de")
    expect(tab.page.get_by_role("combobox", name="Agent")).to_have_value("concise-de")
    total = tab.page.get_by_role("region", name="Usage by day").get_by_role("row").last
    report = usage_of(standin, agent="concise-de", **days(30))
    expect(total).to_contain_text(amount(report["total"]["cost_usd"]))
    expect(total.locator("data")).to_have_attribute("title", f"${report['total']['cost_usd']}")
    tab.page.reload()
    expect(total).to_contain_text("Total")
    assert figures(total) == expected(report["total"])


def test_a_gateway_that_does_not_answer_is_asked_again(tab: Tab, standin: Gateway) -> None:
    tab.expects_failed_requests = True
    tab.sign_in(fragment="#/chat/concise-de")
    tab.page.route("**/v1/usage*", lambda route: route.abort("connectionrefused"))
    tab.view("Usage")
    expect(tab.page.get_by_role("alert").first).to_contain_text("The gateway does not answer.")
    tab.page.unroute("**/v1/usage*")
    expect(tab.page.get_by_role("region", name="Usage by day")).to_be_visible()
    expect(tab.page.get_by_role("alert")).to_have_count(0)


def test_agents_are_sorted_by_cost_and_amounts_have_two_digits(tab: Tab) -> None:
    costs = {"small": "0.00017412", "none": "0", "large": "1234.5678", "middle": "0.105"}
    counts = {"requests": 1, "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    groups = [{"key": name, **counts, "cost_usd": cost} for name, cost in costs.items()]
    body = json.dumps({"usage": groups, "total": {**counts, "cost_usd": "1234.67297412"}})
    tab.page.route("**/v1/usage*", lambda route: route.fulfill(body=body, content_type="application/json"))
    tab.sign_in(fragment="#/usage")
    rows = tab.page.get_by_role("region", name="Usage by agent").get_by_role("row")
    expect(rows.get_by_role("rowheader")).to_have_text(["large", "middle", "small", "none", "Total"])
    expect(rows.locator("data")).to_have_text(["$1,200", "$0.11", "$0.00017", "$0", "$1,200"])
    titles = [amount.get_attribute("title") for amount in rows.locator("data").all()]
    assert titles == ["$1234.5678", "$0.105", "$0.00017412", "$0", "$1234.67297412"]


def test_a_period_without_calls_is_said_so(tab: Tab) -> None:
    none = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": "0"}
    body = json.dumps({"usage": [], "total": none})
    tab.page.route("**/v1/usage*", lambda route: route.fulfill(body=body, content_type="application/json"))
    tab.sign_in(fragment="#/usage")
    expect(tab.page.locator("main")).to_contain_text("No calls in this period.")


def test_the_view_has_no_serious_finding(tab: Tab, standin: Gateway) -> None:
    ask(standin, "concise-de")
    tab.sign_in(fragment="#/usage")
    expect(tab.page.get_by_role("region", name="Usage by day")).to_be_visible()
    assert grave_findings(tab.page) == []
