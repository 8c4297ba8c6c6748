"""The states of every view in which it has nothing to show: each says what is wrong, and axe-core finds nothing grave in it."""

import re
from typing import Final

import pytest
from playwright.sync_api import Route, expect

from tests.page.accessibility import grave_findings
from tests.page.scripted import no_answer, refusal
from tests.page.tab import Tab

FIRST_ROUTES: Final = {
    "chat": "a1/agents",
    "approvals": "a1/approvals",
    "workspaces": "a1/workspaces",
    "indices": "a1/rag/indices",
    "usage": "v1/usage",
}
"""What each view reads first."""
STATES: Final = {
    "offline": (no_answer, "The gateway does not answer."),
    "not permitted": (refusal(403, "admin_required"), "Refused with admin_required."),
    "failed": (refusal(503, "storage_unavailable", Retry_After="7"), "Refused with storage_unavailable."),
}


def never_answer(route: Route) -> None:
    """Leave the request open."""


@pytest.mark.parametrize("view", FIRST_ROUTES)
def test_a_view_with_nothing_to_show_says_why_and_axe_finds_nothing_grave(tab: Tab, view: str) -> None:
    tab.sign_in(user="stateless")
    tab.expects_failed_requests = True
    pattern = re.compile(rf"/{FIRST_ROUTES[view]}(\?|$)")
    tab.page.route(pattern, never_answer)
    tab.open(f"#/{view}")
    tab.page.reload()
    expect(tab.page.locator("main").get_by_text("Loading").first).to_be_visible()
    found = {"loading": grave_findings(tab.page)}
    for answer, text in STATES.values():
        tab.page.unroute(pattern)
        tab.page.route(pattern, answer)
        tab.page.reload()
        alert = tab.page.locator("main").get_by_role("alert").filter(has_text=text).first
        expect(alert).to_be_visible()
        expect(alert.get_by_role("button", name="Try again")).to_be_visible()
    found["failed"] = grave_findings(tab.page)  # the other two differ from it by a text alone
    assert {name: lines for name, lines in found.items() if lines} == {}
