"""Findings of axe-core in a page."""

from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page

_AXE: Final = (Path(__file__).resolve().parents[2] / "node_modules/axe-core/axe.min.js").read_text()
_GRAVE: Final = {"serious", "critical"}
_ALL_RULES: Final = "{resultTypes: ['violations'], rules: {'target-size': {enabled: true}}}"
_CONTRAST: Final = "{resultTypes: ['violations'], runOnly: {type: 'rule', values: ['color-contrast']}}"
# The theme changes colours only, and the width changes none.
_RUNS: Final = (("light", 1280, _ALL_RULES), ("dark", 1280, _CONTRAST), ("light", 390, _ALL_RULES))
_SET_THEME: Final = "theme => { document.documentElement.dataset.theme = theme }"


def grave_findings(page: Page) -> list[str]:
    """Return what axe-core finds serious or critical in the page as it is: light and dark, wide and narrow."""
    page.evaluate(_AXE)
    before, theme = page.viewport_size, page.evaluate("document.documentElement.dataset.theme")
    found: list[str] = []
    for name, width, options in _RUNS:
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate(_SET_THEME, name)
        result: dict[str, Any] = page.evaluate(f"axe.run({options})")
        found += [_line(violation, name, width) for violation in result["violations"] if violation["impact"] in _GRAVE]
    page.evaluate(_SET_THEME, theme)
    if before is not None:
        page.set_viewport_size(before)
    return found


def _line(violation: dict[str, Any], theme: str, width: int) -> str:
    nodes = "; ".join(f"{node['html'][:200]} ({node['failureSummary'][:300]})" for node in violation["nodes"][:3])
    return f"{violation['id']} ({theme}, {width} px): {nodes}"
