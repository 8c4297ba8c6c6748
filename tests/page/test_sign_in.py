"""Signing in and out, and where the token is."""

import json

from playwright.sync_api import Route, expect

from tests.page.tab import Tab


def test_a_user_signs_in_reloads_and_signs_out(tab: Tab) -> None:
    tab.sign_in()
    expect(tab.page.get_by_role("banner")).to_contain_text("ada")
    tab.page.reload()
    expect(tab.page.get_by_role("banner")).to_contain_text("ada")
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_label("Token")).to_be_visible()
    assert json.loads(tab.page.evaluate("JSON.stringify(sessionStorage)")) == {}


def test_an_address_that_names_no_view_shows_the_chat(tab: Tab) -> None:
    for fragment in ("#/toString", "#/__proto__/x", "#nothing"):
        if fragment == "#/toString":
            tab.sign_in(fragment=fragment)
        else:
            tab.page.evaluate("fragment => { location.hash = fragment }", fragment)
        expect(tab.page.locator("main.chat").get_by_label("Message", exact=True)).to_be_visible()


def test_signing_out_forgets_the_theme(tab: Tab) -> None:
    tab.sign_in()
    tab.page.get_by_role("button", name="Dark", exact=True).click()
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "light")


def test_an_answer_of_another_shape_leaves_a_message_and_the_other_views(tab: Tab) -> None:
    tab.sign_in(fragment="#/usage")
    tab.page.route("**/a1/agents", lambda route: route.fulfill(body="{}", content_type="application/json"))
    tab.view("Chat")
    expect(tab.page.get_by_role("alert")).to_contain_text("The page failed.")
    assert all("TypeError" in fault for fault in tab.faults)
    tab.faults.clear()
    tab.view("Usage")
    expect(tab.page.get_by_role("heading", name="Usage")).to_be_visible()


def test_a_gateway_that_is_silent_counts_as_one_that_does_not_answer(tab: Tab) -> None:
    tab.expects_failed_requests = True
    tab.page.clock.install()
    tab.sign_in(fragment="#/chat/concise-de")
    tab.page.route("**/v1/usage*", lambda route: None)
    with tab.page.expect_request("**/v1/usage*"):
        tab.view("Usage")
    expect(tab.page.get_by_text("Loading …").first).to_be_visible()
    tab.page.clock.fast_forward(41_000)
    expect(tab.page.get_by_role("alert").first).to_contain_text("The page tries again automatically.")
    tab.page.unroute_all(behavior="ignoreErrors")


def test_a_wait_of_months_is_told_in_days_and_not_cut_to_nothing(tab: Tab) -> None:
    tab.expects_failed_requests = True
    asked: list[str] = []
    body = json.dumps({"error": {"code": "rate_limited", "message": "Later.", "details": {}}, "request_id": "req_1"})

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=429, headers={"Retry-After": str(40 * 86400)}, body=body, content_type="application/json")

    tab.sign_in(fragment="#/chat/concise-de")
    tab.page.route("**/v1/usage?group_by=agent*", refuse)
    tab.view("Usage")
    expect(tab.page.get_by_role("alert")).to_contain_text("Try again in 40 days.")
    tab.page.wait_for_timeout(500)
    assert len(asked) == 1


def test_a_wrong_token_is_refused_with_a_message(tab: Tab) -> None:
    tab.expects_failed_requests = True
    tab.open()
    tab.page.get_by_label("Token").fill("wrong")
    tab.page.get_by_label("User id").fill("ada")
    tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page.get_by_role("alert")).to_have_text("The gateway does not know this token. Check it, or ask your operator.")
    assert json.loads(tab.page.evaluate("JSON.stringify(sessionStorage)")) == {}
