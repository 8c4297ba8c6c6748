"""The page on a phone: Enter breaks a line, fingers hit what they point at, and the messages have most of the height."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import Gateway
from tests.page.accessibility import grave_findings
from tests.page.chatting import await_end, message_box, shown
from tests.page.tab import Tab
from tests.page.writer import TOKEN, Writer

TARGETS: Final = """
() => [...document.querySelectorAll("a, button, input, select, textarea, summary")]
  .filter((one) => one.checkVisibility() && !one.closest(".unseen, .skip"))
  .map((one) => ({ name: `${one.localName} ${one.textContent.trim().slice(0, 30)}`, one, box: one.getBoundingClientRect() }))
  .filter(({ one, box }) => {
    const isInText = one.matches("p a, p span a");  // as high as its line
    const smallest = one.matches("[type=checkbox], [type=radio]") || isInText ? 24 : 44;
    return (!isInText && box.height < smallest) || box.width < 24;
  })
  .map(({ name, box }) => `${name} ${box.width} x ${box.height}`)
"""
LOG_SHARE: Final = "() => document.getElementById('log').clientHeight / innerHeight"
VIEWS: Final = ("Approvals", "Workspaces", "Indices", "Usage")


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    yield context.new_page()
    context.close()


def sign_in(tab: Tab, token: str, user: str, fragment: str) -> None:
    tab.open(fragment)
    tab.page.get_by_label("Token").fill(token)
    tab.page.get_by_label("User id").fill(user)
    tab.page.get_by_role("button", name="Sign in").tap()
    message_box(tab).wait_for()


def test_enter_breaks_a_line_and_a_tap_on_send_sends(phone: Page, writer: Writer) -> None:
    tab = Tab(phone, writer.url)
    sign_in(tab, TOKEN, "walker", "#/chat/poet")
    message_box(tab).tap()
    phone.keyboard.type("One")
    phone.keyboard.press("Enter")
    phone.keyboard.type("Two")
    expect(message_box(tab)).to_have_value("One\nTwo")
    phone.get_by_role("button", name="Send").tap()
    await_end(tab)
    assert shown(tab)[0] == ("user", "One\nTwo")
    assert tab.faults == []


def test_every_target_is_large_enough_for_a_finger(phone: Page, standin: Gateway) -> None:
    tab = Tab(phone, standin.url)
    sign_in(tab, "demo-token", "thumb", "#/chat/dir-code/new")
    message_box(tab).fill("What is in src/main.py?")
    phone.get_by_role("button", name="Send").tap()
    await_end(tab)
    phone.get_by_role("button", name="Sessions").tap()
    found: dict[str, Any] = {"Chat": phone.evaluate(TARGETS)}
    assert phone.evaluate("() => document.querySelectorAll('.code button, .call summary').length") >= 3
    for view in VIEWS:
        phone.get_by_role("button", name="Menu").tap()
        found[f"menu before {view}"] = phone.evaluate(TARGETS)
        phone.get_by_role("navigation", name="Views").get_by_role("link", name=view).tap()
        expect(phone.locator("main").get_by_role("heading", level=1)).to_have_text(view)
        phone.wait_for_load_state("networkidle")
        found[view] = phone.evaluate(TARGETS)
    tab.open("#/workspaces/default/versions")
    expect(phone.locator("main").get_by_role("link", name="Version 1", exact=True)).to_be_visible()
    found["versions"] = phone.evaluate(TARGETS)
    assert {view: names for view, names in found.items() if names} == {}
    assert tab.faults == []


def test_the_messages_have_two_thirds_of_the_height(phone: Page, writer: Writer) -> None:
    tab = Tab(phone, writer.url)
    sign_in(tab, TOKEN, "reader", "#/chat/poet")
    message_box(tab).fill("calculate 6*7")
    phone.get_by_role("button", name="Send").tap()
    await_end(tab)
    assert phone.evaluate(LOG_SHARE) > 0.65
    assert phone.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_the_menu_leads_to_the_views_and_escape_closes_it_without_a_stop(phone: Page, writer: Writer) -> None:
    tab = Tab(phone, writer.url)
    story = writer.model.begin("A long way")
    sign_in(tab, TOKEN, "navigator", "#/chat/poet")
    views = phone.get_by_role("navigation", name="Views")
    expect(views).to_be_hidden()
    message_box(tab).fill("A long way")
    phone.get_by_role("button", name="Send").tap()
    story.write("Half of it ")
    expect(phone.get_by_text("Half of it")).to_be_visible()
    menu = phone.get_by_role("button", name="Menu")
    menu.tap()
    expect(views).to_be_visible()
    assert grave_findings(phone) == []
    phone.keyboard.press("Escape")
    expect(views).to_be_hidden()
    expect(menu).to_be_focused()
    story.write("and the rest")
    story.end()
    await_end(tab)
    assert shown(tab)[-1] == ("assistant", "Half of it and the rest")
    menu.tap()
    views.get_by_role("link", name="Usage").tap()
    expect(phone.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    expect(views).to_be_hidden()
    expect(phone.locator("main")).to_be_focused()
