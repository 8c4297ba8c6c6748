"""Signing in and out, and where the token is."""

import json

from playwright.sync_api import expect

from tests.page.tab import Tab


def test_a_user_signs_in_reloads_and_signs_out(tab: Tab) -> None:
    tab.sign_in()
    expect(tab.page.get_by_role("banner")).to_contain_text("ada")
    tab.page.reload()
    expect(tab.page.get_by_role("banner")).to_contain_text("ada")
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_label("Token")).to_be_visible()
    assert json.loads(tab.page.evaluate("JSON.stringify(sessionStorage)")) == {}


def test_a_wrong_token_is_refused_with_a_message(tab: Tab) -> None:
    tab.expects_failed_requests = True
    tab.open()
    tab.page.get_by_label("Token").fill("wrong")
    tab.page.get_by_label("User id").fill("ada")
    tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page.get_by_role("alert")).to_be_visible()
    assert json.loads(tab.page.evaluate("JSON.stringify(sessionStorage)")) == {}
