"""Nothing that a model, a file or a document writes runs, sends or loads anything in the page."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import Gateway, running_gateway
from tests.page.exposed import with_modules
from tests.page.hostile import ALL, LINKS, OFFENDERS, OTHERS, RAW_HTML, STRANGE_NAMES, WATCH_CODE, offenders
from tests.page.scripted import Script, frames, stream, turn
from tests.page.tab import Tab

TOKEN = "hostile-token"
GROUP = 12
"""Outputs in one answer."""
LAST = "The answer ends here."
CONFIG = """
llm:
  backends:
    - {{name: script, provider: openai, base_url: "{upstream}/v1", supported_models: [scripted]}}
    - {{name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}}
models:
  - {{name: scripted, context_window: 100000}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: scripted}}
tenants: [{{id: hostile, tokens: [{{id: hostile, sha256: {digest}}}]}}]
"""
AGENT = "name: helper\nmodel: scripted\ndescription: Helps.\ntools: [read_file, list_directory]\nworkspace: default\n"

GROW = (
    """
async (texts) => {
  const { Markdown } = await load("markdown.js");
  const check = """
    + OFFENDERS
    + """;
  const report = {};
  for (const [name, text] of Object.entries(texts)) {
    const growing = new Markdown(), whole = new Markdown();
    document.body.append(growing.element);
    const found = new Set();
    for (let end = 1; end <= text.length; end++) {
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


def answers() -> list[str]:
    """Return the outputs in groups, as answers. A fence that never closes ends its answer."""
    texts = sorted(ALL.values(), key=lambda text: text.startswith("```js"))
    return ["\n\n".join([*texts[at : at + GROUP], LAST]) for at in range(0, len(texts), GROUP)]


def respond(body: Body) -> Completion:
    """Answer the question "answer 3" with the third answer, in pieces of one to five characters."""
    question = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    text = answers()[int(re.findall(r"\d+", str(question))[-1])]
    return Completion({"content": text}, pieces=re.findall(r"(?s).{1,5}", text))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_model(respond) as upstream:
        config = CONFIG.format(upstream=upstream, digest=hashlib.sha256(TOKEN.encode()).hexdigest())
        with running_gateway(tmp_path_factory.mktemp("hostile"), config, {"helper": AGENT}) as running:
            yield running


def watched(tab: Tab) -> Tab:
    tab.page.add_init_script(WATCH_CODE)
    return tab


@pytest.fixture
def quiet(tab: Tab) -> Tab:
    """A tab at the stand-in gateway that notices code which runs."""
    return watched(tab)


def test_there_are_more_than_sixty_hostile_outputs() -> None:
    assert len(set(ALL.values())) == len(ALL) >= 60


def test_hostile_answers_are_read_in_pieces_and_do_nothing(new: Callable[[str], Tab], gateway: Gateway) -> None:
    tab = watched(new(gateway.url))
    tab.sign_in(TOKEN, fragment="#/chat/helper/new")
    for number in range(len(answers())):
        tab.page.get_by_label("Message", exact=True).fill(f"answer {number}")
        tab.page.get_by_role("button", name="Send").click()
        expect(tab.page.locator(".turn").nth(number)).to_contain_text(LAST)
        expect(tab.page.get_by_role("button", name="Send")).to_be_visible()
        assert offenders(tab.page) == []
    tab.page.reload()
    expect(tab.page.locator("#log").get_by_text(LAST)).to_have_count(len(answers()))
    assert offenders(tab.page) == []


def test_a_hostile_output_that_is_cut_anywhere_does_nothing(quiet: Tab) -> None:
    with_modules(quiet).sign_in()
    report: Mapping[str, Any] = quiet.page.evaluate(GROW, dict(ALL))
    assert {name: one["found"] for name, one in report.items() if one["found"]} == {}
    assert [name for name, one in report.items() if not one["same"]] == []
    for name, text in RAW_HTML.items():
        for mark in ("pwned()", "evil.example"):
            assert report[name]["text"].count(mark) >= text.count(mark), name
    assert [name for name in LINKS if "x" in report[f"link: {name}"]["links"]] == []
    assert [name for name in OTHERS if report[name]["elements"] == 0] == []


def test_a_link_shows_its_host_in_ascii_after_a_text_that_cannot_hide_it(quiet: Tab) -> None:
    with_modules(quiet).sign_in()
    report: Mapping[str, Any] = quiet.page.evaluate(GROW, {name: OTHERS[name] for name in OTHERS})
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
