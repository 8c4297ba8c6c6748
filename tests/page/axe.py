"""Accessibility of what a tab shows, as axe-core judges it."""

from playwright.sync_api import expect

from tests.page.chromium import ROOT
from tests.page.tab import Tab

_SOURCE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
_GRAVE = ("serious", "critical")


def findings(tab: Tab) -> list[str]:
    """Return the serious and critical findings in the dark and the light theme, each with its rule and the element."""
    tab.page.evaluate(_SOURCE.read_text())
    found: list[str] = []
    for theme in ("Dark", "Light"):
        if (switch := tab.page.get_by_role("button", name=theme, exact=True)).count():
            switch.click()
        expect(tab.page.locator("html")).to_have_attribute("data-theme", theme.lower())
        violations = tab.page.evaluate("async () => (await axe.run()).violations")
        grave = [one for one in violations if one["impact"] in _GRAVE]
        found += [f"{theme}: {one['id']}: {node['html']}" for one in grave for node in one["nodes"]]
    return found
