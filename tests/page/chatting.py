"""Chat as a user does, and read the chat view."""

import re
from typing import Any

from playwright.sync_api import Locator, Request, expect

from tests.page.tab import Tab

_SHOWN = """() => [...document.querySelectorAll('.turn')].flatMap((turn) => [
  ['user', turn.querySelector('.question .text')?.textContent ?? ''],
  ['assistant', [...turn.querySelectorAll('.markdown')].map((text) => text.textContent.trim()).join('|')],
])"""

_FRAMES = "() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))"


def message_box(tab: Tab) -> Locator:
    return tab.page.get_by_label("Message", exact=True)


def ask(tab: Tab, text: str) -> None:
    message_box(tab).fill(text)
    expect(tab.page.get_by_role("button", name="Send")).to_be_enabled()  # an answer may still be on its way
    message_box(tab).press("Enter")


def await_end(tab: Tab) -> None:
    """Wait until no turn runs and the history is shown."""
    tab.page.evaluate(_FRAMES)
    expect(tab.page.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
    expect(tab.page.locator(".turn .answer[aria-busy=true]")).to_have_count(0)


def shown(tab: Tab) -> list[tuple[str, str]]:
    """Return what the log shows, as role and text of the questions and answers."""
    return [(role, text) for role, text in tab.page.evaluate(_SHOWN)]


def sent_messages(tab: Tab) -> list[dict[str, Any]]:
    """Return a list to which the body of every message is added that the tab sends from now on."""
    bodies: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.method == "POST" and request.url.endswith("/chat"):
            bodies.append(request.post_data_json or {})

    tab.page.on("request", note)
    return bodies


def log(tab: Tab) -> Locator:
    return tab.page.get_by_role("group", name="Messages")


def choose(tab: Tab, agent: str) -> None:
    tab.page.get_by_label("Agent", exact=True).select_option(agent)
    expect(tab.page).to_have_url(re.compile(f"#/chat/{agent}(/|$)"))
    tab.page.evaluate(_FRAMES)  # until then the field is that of the agent before
    tab.page.get_by_label("Conversation").wait_for()
