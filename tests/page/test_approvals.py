"""Calls that wait for a person: decided in the chat, in the list and in another tab."""

import json
from collections.abc import Callable
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.conftest import Gateway
from tests.page.accessibility import grave_findings
from tests.page.chatting import ask
from tests.page.tab import Tab

DELETE = "Delete the file docs/old-notes.md"


def card(page: Page, number: int = 0) -> Locator:
    return page.get_by_role("article", name="Approval of aider_edit").nth(number)


@pytest.fixture
def files(standin: Gateway) -> Gateway:
    """The gateway, with the file that the tests want to delete."""
    with standin.client() as client:
        content = {"Content-Type": "application/octet-stream"}
        client.put("/a1/workspaces/default/file?path=docs/old-notes.md", content=b"old\n", headers=content).raise_for_status()
    return standin


def holds(gateway: Gateway, path: str) -> bool:
    with gateway.client() as client:
        return client.get("/a1/workspaces/default/file", params={"path": path}).is_success


def test_a_deletion_is_denied_asked_again_and_approved(tab: Tab, files: Gateway) -> None:
    tab.sign_in(user="decider", fragment="#/chat/dir-code")
    ask(tab, DELETE)
    expect(card(tab.page)).to_contain_text("Waits for you")
    expect(card(tab.page)).to_contain_text("docs/old-notes.md")
    expect(tab.page.get_by_role("link", name="Approvals")).to_contain_text("1 waiting")
    card(tab.page).get_by_label("Reason").fill("I still need it")
    card(tab.page).get_by_role("button", name="Deny").click()
    expect(card(tab.page)).to_contain_text("Denied")
    expect(card(tab.page)).to_contain_text("I still need it")
    expect(tab.page.get_by_role("link", name="Approvals")).not_to_contain_text("waiting")
    assert holds(files, "docs/old-notes.md")

    ask(tab, DELETE)
    card(tab.page, 1).get_by_role("button", name="Approve").click()
    expect(card(tab.page, 1)).to_contain_text("Executed")
    assert not holds(files, "docs/old-notes.md")

    tab.page.reload()
    expect(card(tab.page, 0)).to_contain_text("Denied")
    expect(card(tab.page, 1)).to_contain_text("Executed")
    calls = tab.page.get_by_label("Call of aider_edit", exact=True)
    expect(calls.nth(0)).to_have_class("call failed")
    expect(calls.nth(1)).to_have_class("call done")
    tab.page.get_by_role("button", name="Tell the agent to continue").click()
    expect(tab.page.get_by_text("Continue: what waited has been decided.")).to_be_visible()


def test_a_delegates_deletion_is_decided_after_a_reload(tab: Tab, files: Gateway) -> None:
    tab.sign_in(user="delegator", fragment="#/chat/architect")
    ask(tab, "Ask the code director to delete the file docs/old-notes.md")
    expect(card(tab.page)).to_contain_text("Waits for you")
    expect(tab.page.get_by_role("button", name="Send")).to_be_visible()
    tab.page.reload()
    card(tab.page).get_by_role("button", name="Deny").click()
    expect(card(tab.page)).to_contain_text("Denied")
    expect(tab.page.get_by_role("button", name="Tell the agent to continue")).to_be_visible()
    assert holds(files, "docs/old-notes.md")


def test_the_list_shows_what_waits_and_then_its_outcome_in_place(tab: Tab, files: Gateway) -> None:
    ids = [waiting(files, "lister-2"), waiting(files, "lister-2")]
    assert len(set(ids)) == 2
    tab.sign_in(user="lister-2", fragment="#/approvals")
    expect(tab.page.get_by_role("link", name="Approvals")).to_contain_text("2 waiting")
    first = card(tab.page, 0)
    first.get_by_label("Reason").fill("no")
    first.get_by_role("button", name="Deny").click()
    expect(first).to_contain_text("Denied")
    expect(card(tab.page, 1)).to_contain_text("Waits for you")
    first.get_by_text("Arguments").click()
    expect(first.locator("details[open]")).to_have_count(1)
    tab.page.get_by_role("button", name="Refresh").click()
    expect(first).to_contain_text("Waits for you")  # the second one has taken its place, and nothing of it is open
    expect(first.locator("details[open]")).to_have_count(0)
    decided = tab.page.get_by_role("region", name="Decided")
    expect(decided.get_by_role("article", name="Approval of aider_edit")).to_contain_text("Reason: no")
    tab.page.get_by_label("Show").select_option("Executed")
    expect(decided).to_contain_text("No approval is executed.")
    tab.page.get_by_role("link", name="open the session").first.click()
    expect(card(tab.page)).to_contain_text("aider_edit")
    expect(tab.page.locator("main.chat")).to_be_visible()


def test_an_approval_decided_in_another_tab_shows_its_outcome(tab: Tab, new: Callable[[str], Tab], files: Gateway) -> None:
    approval = waiting(files, "two-tabs")
    tab.sign_in(user="two-tabs", fragment="#/approvals")
    other = new(files.url)
    other.expects_failed_requests = True
    other.page.route(f"**/a1/approvals/{approval}", lambda route: decide_elsewhere(route, files))
    other.sign_in(user="two-tabs", fragment="#/approvals")
    card(other.page).get_by_role("button", name="Approve").click()
    expect(card(other.page)).to_contain_text("Denied")
    expect(card(other.page)).to_contain_text("It was decided elsewhere.")
    expect(card(tab.page)).to_contain_text("Denied", timeout=15_000)  # the first tab polls


def decide_elsewhere(route: Route, gateway: Gateway) -> None:
    """Deny the approval before the tab's own decision reaches the gateway."""
    if route.request.method == "POST":
        with gateway.client(user="two-tabs") as client:
            client.post(route.request.url.removeprefix(gateway.url), json={"decision": "deny"})
    route.continue_()


def test_what_was_decided_or_deleted_elsewhere_is_not_counted_any_more(tab: Tab, files: Gateway) -> None:
    tab.expects_failed_requests = True
    ids = [waiting(files, "counter"), waiting(files, "counter")]
    tab.sign_in(user="counter", fragment="#/usage")
    badge = tab.page.get_by_role("link", name="Approvals")
    expect(badge).to_contain_text("2 waiting")
    with files.client(user="counter") as client:
        client.post(f"/a1/approvals/{ids[0]}", json={"decision": "deny"}).raise_for_status()
        session = client.get(f"/a1/approvals/{ids[1]}").raise_for_status().json()["session_id"]
        client.delete(f"/a1/agents/dir-code/sessions/{session}").raise_for_status()
    main = tab.view("Approvals")
    expect(main).to_contain_text("Nothing waits.")
    expect(badge).not_to_contain_text("waiting")


def test_the_approvals_have_no_serious_finding(tab: Tab, files: Gateway) -> None:
    denied = waiting(files, "judge")
    waiting(files, "judge")
    with files.client(user="judge") as client:
        client.post(f"/a1/approvals/{denied}", json={"decision": "deny"}).raise_for_status()
    tab.sign_in(user="judge", fragment="#/approvals")
    expect(tab.page.get_by_role("region", name="Decided")).to_contain_text("Denied")
    expect(tab.page.get_by_role("button", name="Approve")).to_be_visible()
    assert grave_findings(tab.page) == []


def test_a_page_that_was_left_while_it_loaded_more_can_be_asked_again(tab: Tab) -> None:
    tab.expects_failed_requests = True  # the gateway does not know the cursor
    page = json.dumps({"approvals": [], "next_cursor": "c"})
    tab.page.route("**/a1/approvals?*", lambda route: route.fulfill(body=page, content_type="application/json"))
    tab.page.route("**/a1/approvals?*cursor=c*", lambda route: None)
    tab.sign_in(user="leaver", fragment="#/approvals")
    tab.page.get_by_role("button", name="Show more").first.click()
    expect(tab.page.get_by_role("button", name="Loading …")).to_be_disabled()
    tab.view("Usage")
    tab.view("Approvals")
    expect(tab.page.get_by_role("button", name="Show more")).to_have_count(2)
    tab.page.unroute_all(behavior="ignoreErrors")


def test_a_lost_reply_is_followed_by_reading_the_outcome(tab: Tab, files: Gateway) -> None:
    approval = waiting(files, "lost")
    tab.expects_failed_requests = True
    decisions: list[str] = []

    def lose(route: Route) -> None:
        if route.request.method == "POST":
            decisions.append(route.request.post_data or "")
            route.fetch()
            route.abort()
        else:
            route.continue_()

    tab.page.route(f"**/a1/approvals/{approval}", lose)
    tab.sign_in(user="lost", fragment="#/approvals")
    card(tab.page).get_by_role("button", name="Deny").dblclick()
    expect(card(tab.page)).to_contain_text("Denied")
    assert [json.loads(body) for body in decisions] == [{"decision": "deny"}]


def waiting(gateway: Gateway, user: str) -> str:
    """Ask dir-code for a deletion and return the id of the approval for which it waits."""
    with gateway.client(user=user) as client:
        message = {"message_id": f"m-{uuid4()}", "messages": [{"role": "user", "content": DELETE}]}
        client.post("/c1/agents/dir-code/chat", json=message).raise_for_status()
        listed = client.get("/a1/approvals").raise_for_status().json()["approvals"]
    return str(listed[0]["id"])


def test_a_decision_that_did_not_arrive_can_be_made_again(tab: Tab, files: Gateway) -> None:
    approval = waiting(files, "unheard")
    tab.expects_failed_requests = True
    tab.page.route(f"**/a1/approvals/{approval}", lambda route: route.abort(), times=2)  # the decision, and the first look
    tab.sign_in(user="unheard", fragment="#/approvals")
    card(tab.page).get_by_label("Reason").fill("because")
    card(tab.page).get_by_role("button", name="Deny").click()
    expect(card(tab.page)).to_contain_text("the call still waits", timeout=20_000)
    expect(card(tab.page).get_by_label("Reason")).to_have_value("because")
    card(tab.page).get_by_role("button", name="Deny").click()
    expect(card(tab.page)).to_contain_text("Reason: because")


def test_a_call_whose_file_has_changed_is_shown_as_failed(tab: Tab, files: Gateway) -> None:
    waiting(files, "conflict")
    tab.sign_in(user="conflict", fragment="#/approvals")
    expect(card(tab.page)).to_contain_text("Waits for you")
    with files.client() as client:
        content = {"Content-Type": "application/octet-stream"}
        client.put("/a1/workspaces/default/file?path=docs/old-notes.md", content=b"new\n", headers=content).raise_for_status()
    card(tab.page).get_by_role("button", name="Approve").click()
    expect(card(tab.page)).to_contain_text("Failed")
    expect(card(tab.page)).to_contain_text("A file has changed since the preview.")
    assert holds(files, "docs/old-notes.md")


def test_typing_and_focus_stay_when_another_call_begins_to_wait(tab: Tab, files: Gateway) -> None:
    waiting(files, "typist")
    tab.sign_in(user="typist", fragment="#/approvals")
    reason = card(tab.page, 0).get_by_label("Reason")
    reason.fill("half a rea")
    waiting(files, "typist")
    tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # the page looks at once
    expect(card(tab.page, 1)).to_contain_text("Waits for you")
    expect(reason).to_have_value("half a rea")
    expect(reason).to_be_focused()
    expect(card(tab.page, 1).get_by_label("Reason")).to_have_value("")


def test_the_list_says_that_nothing_waits_and_recovers_from_an_outage(tab: Tab, standin: Gateway) -> None:
    tab.expects_failed_requests = True
    tab.sign_in(user="idle", fragment="#/usage")
    tab.page.route("**/a1/approvals?**", lambda route: route.abort())
    main = tab.view("Approvals")
    expect(main.get_by_text("The gateway does not answer.").first).to_be_visible()
    tab.page.unroute("**/a1/approvals?**")
    expect(main).to_contain_text("Nothing waits.")
    expect(main).to_contain_text("Nothing has been decided in the last 30 days.")
