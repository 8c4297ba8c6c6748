"""Nothing that a model, a file or a document writes runs, sends or loads anything in the page."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from tests.page.exposed import with_modules
from tests.page.hostile import ALL, LAST, LINKS, OFFENDERS, OTHERS, RAW_HTML, STRANGE_NAMES, WATCH_CODE, answers, offenders
from tests.page.scripted import Script, frames, stream, turn
from tests.page.tab import Tab
from tests.sampling import sampled

CUTS: Final = sampled(range(1, max(map(len, ALL.values()))), 5)
"""The characters after which a run cuts the outputs."""

GROW: Final = (
    """
async ([texts, ends]) => {
  const { Markdown } = await load("markdown.js");
  const check = """
    + OFFENDERS
    + """;
  const report = {};
  for (const [name, text] of Object.entries(texts)) {
    const growing = new Markdown(), whole = new Markdown();
    document.body.append(growing.element);
    const found = new Set();
    for (const end of [...ends.filter((one) => one < text.length), text.length]) {
      growing.update(text.slice(0, end), end === text.length);
      for (const one of check()) found.add(one);
    }
    whole.update(text, true);
    report[name] = {
      found: [...found], links: [...growing.element.querySelectorAll("a bdi")].map((label) => label.textContent),
      elements: growing.element.querySelectorAll("*").length,
      text: growing.element.textContent, same: growing.element.innerHTML === whole.element.innerHTML,
    };
    growing.element.remove();
  }
  return report;
}
"""
)


@pytest.fixture
def quiet(tab: Tab) -> Tab:
    """A tab that notices code which runs."""
    tab.page.add_init_script(WATCH_CODE)
    return tab


def test_there_are_more_than_sixty_hostile_outputs() -> None:
    assert len(set(ALL.values())) == len(ALL) >= 60


def test_hostile_answers_are_read_in_pieces_and_do_nothing(quiet: Tab) -> None:
    quiet.sign_in("hostile-token", fragment="#/chat/mocker/new")
    for number in range(len(answers())):
        quiet.page.get_by_label("Message", exact=True).fill(f"answer {number}")
        quiet.page.get_by_role("button", name="Send").click()
        expect(quiet.page.locator(".turn").nth(number)).to_contain_text(LAST)
        expect(quiet.page.get_by_role("button", name="Send")).to_be_visible()
        assert offenders(quiet.page) == []
    quiet.page.reload()
    expect(quiet.page.locator("#log").get_by_text(LAST)).to_have_count(len(answers()))
    assert offenders(quiet.page) == []


def test_a_hostile_output_that_is_cut_anywhere_does_nothing(quiet: Tab) -> None:
    with_modules(quiet).sign_in()
    report: Mapping[str, Any] = quiet.page.evaluate(GROW, [dict(ALL), list(CUTS)])
    assert {name: one["found"] for name, one in report.items() if one["found"]} == {}
    assert [name for name, one in report.items() if not one["same"]] == []
    for name, text in RAW_HTML.items():
        for mark in ("pwned()", "evil.example"):
            assert report[name]["text"].count(mark) >= text.count(mark), name
    assert [name for name in LINKS if "x" in report[f"link: {name}"]["links"]] == []
    assert [name for name in OTHERS if report[name]["elements"] == 0] == []


def test_a_link_shows_its_host_in_ascii_after_a_text_that_cannot_hide_it(quiet: Tab) -> None:
    with_modules(quiet).sign_in()
    report: Mapping[str, Any] = quiet.page.evaluate(GROW, [dict(OTHERS), []])
    assert report["homograph"]["text"].strip() == "apple.com (xn--pple-43d.com)"
    assert report["text of another host"]["text"].strip() == "https://bank.example (evil.example)"
    assert report["reversed text"]["text"].strip() == "⟨U+202E⟩elpmaxe.knab⟨U+202C⟩ (evil.example)"
    assert report["invisible text"]["text"].strip() == "bank⟨U+200B⟩.exa⟨U+2060⟩mple (evil.example)"


def hostile_calls() -> list[dict[str, Any]]:
    """Return a call for each strange name, in all of whose texts the name is, with every kind of block."""
    calls = []
    for number, name in enumerate(STRANGE_NAMES):
        blocks = [
            {
                "kind": "diff",
                "path": name,
                "status": name,
                "added": 1,
                "removed": 0,
                "unified": f"@@ -1 +1 @@ {name}\n+{name}",
                "truncated": True,
            },
            {"kind": "file_tree", "root": name, "entries": [{"path": f"{name}", "type": "file", "size": 1}], "truncated": False},
            {"kind": "file", "path": name, "language": name, "text": f"{name}\n", "start_line": 1, "truncated": True},
            {"kind": "file", "path": name, "language": "html", "text": f"<script>pwned()</script>{name}", "start_line": 1},
            {"kind": name},
        ]
        calls.append({"id": f"c{number}", "tool": name, "args": {name: name}, "result": {"text": name}, "rich": blocks})
    return calls


def open_all(page: Page) -> None:
    """Open everything that opens, also what this shows."""
    for summary in page.locator("summary").all():
        summary.click()


def test_hostile_names_results_blocks_and_titles_do_nothing(quiet: Tab) -> None:
    calls = hostile_calls()
    events = [{"type": "tool_call", "ok": True, "duration_ms": 1, **call} for call in calls]
    Script(quiet.page, [stream(frames(turn(LAST, between=events)))], LAST, title=STRANGE_NAMES[0], calls=calls).asked.clear()
    quiet.sign_in(fragment="#/chat/helper/new")
    quiet.page.get_by_label("Message", exact=True).fill(STRANGE_NAMES[4])
    quiet.page.get_by_role("button", name="Send").click()
    expect(quiet.page.locator(".call")).to_have_count(len(calls))
    expect(quiet.page.locator("#log").get_by_text(LAST)).to_be_visible()
    open_all(quiet.page)
    assert offenders(quiet.page) == []
    expect(quiet.page.locator(".diff figcaption bdi").nth(1)).to_have_text("⟨U+202E⟩yp.exe")
    expect(quiet.page.locator(".diff td code").nth(5)).to_contain_text("a⟨U+200B⟩b⟨U+2060⟩.py")
    expect(quiet.page.locator(".tool").nth(2)).to_have_text("a⟨U+200B⟩b⟨U+2060⟩.py")
    assert json.dumps(quiet.page.locator(".file code").all_text_contents()).count("\\u202e") == 0
