"""Everything works by keyboard, is announced, and has no serious finding of axe-core."""

import json
from collections.abc import Callable
from typing import Final

from playwright.sync_api import expect

from tests.page.accessibility import grave_findings
from tests.page.chatting import ask, await_end, log, message_box, shown
from tests.page.tab import Tab
from tests.page.writer import TOKEN, Writer

New = Callable[[str], Tab]
RICH: Final = """# Title

Text with `code` and [a link](https://example.org).

```python
print(1)
```

| a | b |
|---|---|
| 1 | 2 |
"""


def tab_to(tab: Tab, selector: str, key: str = "Tab") -> None:
    """Press a key until the focus is on an element."""
    for _ in range(60):
        if tab.page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        tab.page.keyboard.press(key)
    raise AssertionError(f"{key} does not reach {selector}")


def test_a_whole_chat_works_by_keyboard_alone(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    story = writer.model.begin("Go on")
    tab.open()
    keyboard = tab.page.keyboard
    tab_to(tab, "input[name=token]")
    keyboard.type(TOKEN)
    keyboard.press("Tab")
    keyboard.type("typist")
    keyboard.press("Enter")
    expect(message_box(tab)).to_be_focused()
    tab_to(tab, "#agent", "Shift+Tab")
    keyboard.type("poet")
    expect(tab.page.get_by_role("heading", name="poet")).to_be_visible()
    expect(tab.page.locator("#agent")).to_be_focused()
    tab_to(tab, "#message")
    keyboard.type("calculate 6*7")
    keyboard.press("Shift+Enter")
    keyboard.press("Backspace")
    keyboard.press("Enter")
    await_end(tab)
    tab_to(tab, ".call summary", "Shift+Tab")
    keyboard.press("Enter")
    expect(tab.page.locator(".call pre").first).to_be_visible()
    tab_to(tab, "#message")
    keyboard.type("Go on")
    keyboard.press("Enter")
    story.write("Half a sentence")
    expect(log(tab).get_by_text("Half a")).to_be_visible()
    keyboard.press("Escape")
    await_end(tab)
    expect(log(tab).get_by_text("Stopped. The answer so far was kept.")).to_be_visible()
    assert shown(tab)[-1] == writer.history("poet", "typist")[0][-1]
    tab_to(tab, ".sessions button", "Shift+Tab")
    keyboard.press("Enter")
    tab_to(tab, "dialog .primary")
    tab.expects_failed_requests = True  # the page may look at the session while it is deleted
    keyboard.press("Enter")
    expect(message_box(tab)).to_be_focused()
    assert writer.history("poet", "typist") == []


def test_the_page_shows_its_keys_and_escape_closes_them_without_a_stop(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    story = writer.model.begin("Wait")
    tab.sign_in(TOKEN, "helped", "#/chat/poet")
    ask(tab, "Wait")
    story.write("Going on ")
    tab_to(tab, "#log", "Shift+Tab")
    tab.page.keyboard.press("?")
    dialog = tab.page.get_by_role("dialog", name="Keys")
    for key in ("Enter", "Shift+Enter", "Esc"):
        expect(dialog.get_by_role("cell", name=key, exact=True)).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(tab.page.locator("#log")).to_be_focused()
    story.write("to the end")
    story.end()
    await_end(tab)
    assert shown(tab)[-1] == ("assistant", "Going on to the end")


def test_answers_are_announced_by_whole_sentences_once(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    story = writer.model.begin("Speak")
    tab.sign_in(TOKEN, "listener", "#/chat/poet")
    ask(tab, "Speak")
    region = tab.page.locator("#announcements p")
    for piece in ("Pi is 3.", "14. And ", "**e** is"):
        story.write(piece)
    expect(region).to_have_text(["Pi is 3.14."])
    story.write(" 2.7")
    story.end()
    await_end(tab)
    expect(region).to_have_text(["Pi is 3.14.", "And e is 2.7"])


def test_axe_finds_nothing_serious_in_any_state_of_sign_in_and_chat(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True
    found: dict[str, list[str]] = {}
    tab.open()
    found["signed out"] = grave_findings(tab.page)
    tab.page.get_by_label("Token").fill("wrong")
    tab.page.get_by_label("User id").fill("ada")
    tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page.get_by_role("alert")).to_be_visible()
    found["refused token"] = grave_findings(tab.page)
    tab.sign_in(TOKEN, "tester", "#/chat/poet")
    expect(tab.page.get_by_text("Write a message to begin.")).to_be_visible()
    found["empty"] = grave_findings(tab.page)
    ask(tab, "calculate 6*7")
    await_end(tab)
    story = writer.model.begin("Long")
    ask(tab, "Long")
    story.write(RICH)
    expect(log(tab).get_by_role("heading", name="Title")).to_be_visible()
    found["answering"] = grave_findings(tab.page)
    story.end()
    await_end(tab)
    log(tab).get_by_text("Arguments").click()
    found["answered"] = grave_findings(tab.page)
    tab.page.get_by_role("button", name="Keys").click()
    found["keys"] = grave_findings(tab.page)
    tab.page.keyboard.press("Escape")
    body = json.dumps(
        {"error": {"code": "session_busy", "message": "Busy.", "details": {"message_id": "other"}}, "request_id": "r"}
    )
    tab.page.route("**/c1/agents/poet/chat", lambda route: route.fulfill(status=409, body=body, content_type="application/json"))
    ask(tab, "Refused")
    expect(tab.page.get_by_role("button", name="Follow it")).to_be_visible()
    found["refused"] = grave_findings(tab.page)
    tab.page.context.set_offline(True)
    expect(tab.page.get_by_text("You are offline.")).to_be_visible()
    found["offline"] = grave_findings(tab.page)
    tab.page.context.set_offline(False)
    tab.page.get_by_role("button", name="Delete the session").first.click()
    found["deletion"] = grave_findings(tab.page)
    assert {state: lines for state, lines in found.items() if lines} == {}
