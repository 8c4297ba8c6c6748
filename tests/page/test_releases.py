"""A tab that is open while a new release takes the place of the old one: files of the page are gone."""

from playwright.sync_api import Route, expect

from tests.page.accessibility import grave_findings
from tests.page.chatting import message_box
from tests.page.tab import Tab


def gone(route: Route) -> None:
    route.fulfill(status=404, content_type="application/json", body="{}")


def test_a_view_whose_file_is_gone_offers_a_reload_that_keeps_the_draft(tab: Tab) -> None:
    tab.expects_failed_requests = True
    tab.sign_in(user="tenacious", fragment="#/chat/concise-de")
    message_box(tab).fill("A draft")
    tab.page.route("**/ui/usage-*.js", gone)
    main = tab.view("Usage")
    expect(main.get_by_role("alert")).to_contain_text("There is a newer version of the page")
    assert grave_findings(tab.page) == []
    tab.page.unroute("**/ui/usage-*.js")
    main.get_by_role("button", name="Reload the page").click()
    expect(main.get_by_role("heading", name="Usage")).to_be_visible()
    tab.view("Chat")
    expect(message_box(tab)).to_have_value("A draft")


def test_a_page_that_cannot_start_says_how_to_load_it_again(tab: Tab) -> None:
    tab.expects_failed_requests = True
    tab.page.route("**/ui/app-*.js", gone)
    tab.open()
    expect(tab.page.get_by_text("If nothing else appears")).to_be_visible(timeout=10_000)
    tab.page.unroute("**/ui/app-*.js")
    tab.page.get_by_role("link", name="load it again").click()
    expect(tab.page.get_by_label("Token")).to_be_visible()
    expect(tab.page.get_by_text("If nothing else appears")).to_have_count(0)
