"""Huge outputs: the page shows a part, offers all of it, and its buttons still react."""

from collections.abc import Mapping
from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.page.scripted import Script, frames, stream, turn
from tests.page.tab import Tab

END: Final = "This is the end."
TEXTS: Final[Mapping[str, str]] = {
    "a line of 1 MB": "x" * 1_000_000,
    "a line of 1 MB in words": "word " * 200_000,
    "a table of 1,000 columns": "\n".join(["|a" * 1000 + "|", "|-" * 1000 + "|", *["|b" * 1000 + "|"] * 20]),
    "a table of 10,000 rows": "\n".join(["|a|b|", "|-|-|", *["|c|d|"] * 10_000]),
    "100,000 nested quotes": ">" * 100_000 + " deep",
    "a list in 300 levels": "\n".join(f"{'  ' * level}- item" for level in range(300)),
    "a fence that never closes": "```python\n" + "x = 1\n" * 100_000,
}


def show(tab: Tab, text: str, calls: list[dict[str, Any]]) -> None:
    """Show an answer whose stream has these calls and this text, and which the history holds."""
    events = [{"type": "tool_call", "ok": True, "duration_ms": 1, **call} for call in calls]
    pieces = [text[at : at + 50_000] for at in range(0, len(text), 50_000)]
    script = Script(tab.page, [stream(frames(turn(*pieces, between=events)))], text, calls=calls)
    tab.sign_in(fragment="#/chat/helper/new")
    script.ask()
    expect(tab.page.get_by_role("button", name="Send")).to_be_visible(timeout=20_000)
    expect(tab.page.locator(".turn .cost")).to_be_visible(timeout=20_000)


def reacts(tab: Tab) -> None:
    """Press a button that changes the page, and look at the change."""
    for name, other in (("Dark", "Light"), ("Light", "Dark")):
        tab.page.get_by_role("button", name=name, exact=True).click(timeout=5_000)
        expect(tab.page.get_by_role("button", name=other, exact=True)).to_be_visible()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_huge_text_is_shortened_and_offered_whole(tab: Tab, text: str) -> None:
    show(tab, text, [])
    reacts(tab)
    answer = tab.page.locator(".turn .markdown")
    assert answer.locator("*").count() < 5_000
    answer.get_by_text("Show all").last.click()
    whole = answer.locator("pre.plain").last
    expect(whole).to_be_visible()
    assert (whole.text_content() or "").strip() == text.strip()
    reacts(tab)


def test_of_5000_calls_the_last_are_shown_and_the_others_part_by_part(tab: Tab) -> None:
    calls = [
        {"id": f"c{number}", "tool": "read_file", "args": {}, "result": {"n": number}, "rich": []} for number in range(5_000)
    ]
    show(tab, END, calls)
    expect(tab.page.locator(".call")).to_have_count(100)
    for opened in (0, 1):
        tab.page.get_by_text("earlier calls").nth(opened).click()
        expect(tab.page.locator(".call")).to_have_count(100 * (opened + 2))
    reacts(tab)


def test_of_a_diff_of_50000_lines_parts_are_shown(tab: Tab) -> None:
    unified = "@@ -0,0 +1,50000 @@\n" + "+line\n" * 50_000
    diff = {
        "kind": "diff",
        "path": "a.txt",
        "status": "added",
        "added": 50_000,
        "removed": 0,
        "unified": unified,
        "truncated": False,
    }
    show(tab, END, [{"id": "c1", "tool": "aider_edit", "args": {}, "result": {}, "rich": [diff]}])
    expect(tab.page.locator(".diff tbody tr")).to_have_count(500)
    tab.page.get_by_text("Show more of the other 49,501 lines").click()
    expect(tab.page.locator(".diff tbody tr")).to_have_count(2_500)
    reacts(tab)
