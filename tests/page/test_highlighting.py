"""Highlighting of code that was made to keep a grammar busy: the page still reacts, and the code is shown as it is."""

from collections.abc import Mapping
from typing import Final

from playwright.sync_api import Page, Route, expect

from tests.page.exposed import with_modules
from tests.page.tab import Tab

SIZE: Final = 50_000
"""The longest text that is highlighted."""
MAX_TASK: Final = 1_500
"""Milliseconds. A text below takes several grammars more than 5,000; the page itself takes about 100, on an idle machine."""
SLOW: Final[Mapping[str, str]] = {
    "dotted names": ("a." * 145 + "\n") * (SIZE // 291),
    "short lines": "a\n" * (SIZE // 2),
    "line breaks": "\n" * SIZE,
    "quotes": ('"' * 290 + "\n") * (SIZE // 291),
}
LOOP: Final = """() => {
  let longest = 0;
  for (let round = 0; round < 3; round++) {
    const begun = performance.now();
    let sum = 0;
    for (let number = 0; number < 1e8; number++) sum += number % 7;
    longest = Math.max(longest, sum && performance.now() - begun);
  }
  return longest;
}"""
LOOP_MILLISECONDS: Final = 200
WATCH: Final = """() => {
  window.tasks = [];
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: "longtask" });
}"""
GRAMMARS: Final = "async () => (await load('highlight.js/lib/common')).default.listLanguages()"
TEXT_OF_EACH: Final = """
async ([languages, texts]) => {
  const { highlight } = await load("highlight.js");
  const { sanitize } = await load("sanitize.js");
  const wrong = [];
  let slow = 0;
  for (const language of languages) {
    for (const [name, text] of Object.entries(texts)) {
      const html = await highlight(text, language);
      if (html === null) slow++;
      else if (sanitize(html).textContent !== text) wrong.push(`${language}: ${name}`);
    }
  }
  return [wrong, slow];
}
"""
SHOW: Final = """
async (texts) => {
  const { codeBlock } = await load("code.js");
  for (const [text, language] of texts) document.body.append(codeBlock(text, language));
}
"""
GROW: Final = """
async ([start, end]) => {
  const { Markdown } = await load("markdown.js");
  window.answer = new Markdown();
  document.body.append(window.answer.element);
  window.answer.update(start, false);
  window.finish = () => window.answer.update(start + end, true);
}
"""


def slowness(page: Page) -> float:
    """Return how many times longer a loop takes here than on an idle machine: at least 1, more beside other work."""
    milliseconds: float = page.evaluate(LOOP)
    return max(1.0, milliseconds / LOOP_MILLISECONDS)


def longest_task(page: Page) -> float:
    """Return the milliseconds of the longest task since ``WATCH``."""
    page.wait_for_timeout(100)
    longest: float = page.evaluate("Math.max(0, ...window.tasks)")
    return longest


def show(tab: Tab, *texts: tuple[str, str]) -> None:
    tab.page.evaluate(SHOW, [list(one) for one in texts])


def test_no_grammar_freezes_the_page_and_no_character_is_lost(tab: Tab) -> None:
    with_modules(tab).open()
    grammars = tab.page.evaluate(GRAMMARS)
    assert len(grammars) > 30
    tab.page.evaluate(WATCH)
    wrong, given_up = tab.page.evaluate(TEXT_OF_EACH, [grammars, dict(SLOW)])
    assert wrong == []
    assert 0 < given_up < len(grammars) * len(SLOW)
    assert longest_task(tab.page) < MAX_TASK * slowness(tab.page)


def test_code_that_takes_a_grammar_too_long_is_plain_and_other_code_is_not(tab: Tab) -> None:
    with_modules(tab).open()
    tab.page.evaluate(WATCH)
    slow = SLOW["dotted names"]
    show(tab, (slow, "ini"), ("[section]\nname = 1\n", "toml"), ("public int Count() { return 1; }\n", "cs"))
    code = tab.page.locator(".code code")
    for place in (1, 2):
        expect(code.nth(place).locator("span").first).to_be_visible()
    assert longest_task(tab.page) < MAX_TASK * slowness(tab.page)
    assert code.nth(0).text_content() == slow
    expect(code.nth(0).locator("span")).to_have_count(0)
    show(tab, ("[section]\nname = 1\n", "ini"), ("def last(): ...\n", "python"))
    for place in (3, 4):  # one such text does not switch its language off
        expect(code.nth(place).locator("span").first).to_be_visible()
    show(tab, (slow, "ini"), (slow, "ini"), ("[section]\nname = 1\n", "ini"), ("def last(): ...\n", "python"))
    expect(code.nth(8).locator("span").first).to_be_visible()
    expect(code.nth(7).locator("span")).to_have_count(0)  # the language has shown what it can do


def test_code_that_would_need_a_hundred_thousand_elements_is_plain(tab: Tab) -> None:
    with_modules(tab).open()
    show(tab, ("[" * 150 + "\n", "json"), (("[" * 150 + "\n") * (SIZE // 151), "json"), ("[]\n", "json"))
    code = tab.page.locator(".code code")
    for place, count in ((0, 150), (1, 0), (2, 2)):
        expect(code.nth(place).locator("span")).to_have_count(count)


def test_code_is_highlighted_once_it_has_ended(tab: Tab) -> None:
    with_modules(tab).open()
    tab.page.evaluate(GROW, ["```python\ndef first(): ...\n```\n\n```python\ndef second(): ...\n", "```\n"])
    code = tab.page.locator(".code code")
    expect(code.nth(0).locator("span").first).to_be_visible()
    expect(code.nth(1).locator("span")).to_have_count(0)
    tab.page.evaluate("() => window.finish()")
    expect(code.nth(1).locator("span").first).to_be_visible()


def test_without_the_highlighter_code_is_plain_until_its_file_arrives(tab: Tab) -> None:
    tab.expects_failed_requests = True
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.fulfill(status=404)

    with_modules(tab).open()
    tab.page.context.route("**/ui/highlight-worker-*.js", refuse)
    show(tab, ("print(1)\n", "python"))
    with tab.page.expect_event("worker"):
        show(tab, ("print(2)\n", "python"))
    code = tab.page.locator(".code code")
    expect(code).to_have_text(["print(1)\n", "print(2)\n"])
    tab.page.context.unroute("**/ui/highlight-worker-*.js")
    show(tab, ("print(3)\n", "python"))
    expect(code.nth(2).locator("span").first).to_be_visible()
    assert refused
