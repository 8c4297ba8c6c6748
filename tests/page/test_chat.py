"""Chatting: turns, sessions, agents, tabs, refusals."""

import json
from collections.abc import Callable

from playwright.sync_api import Browser, Page, Route, expect

from tests.page.chatting import ask, await_end, choose, log, message_box, sent_messages, shown
from tests.page.tab import Tab, new_tab
from tests.page.writer import TOKEN, Writer

New = Callable[[str], Tab]
PASTE_AND_SEND = """
(field) => {
  field.value = "One";
  field.dispatchEvent(new InputEvent("input", { bubbles: true }));
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
}
"""

TYPE_AND_CHANGE = """
(agent) => new Promise((resolve) => {
  // The page has the new address, and has not rendered it yet.
  addEventListener("hashchange", () => {
    const field = document.getElementById("message");
    field.value = "For the poet";
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
    resolve();
  }, { once: true });
  location.hash = `#/chat/${agent}`;
})
"""


def stripped(history: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(role, text.strip()) for role, text in history]


def test_a_director_lists_reads_and_edits_files(tab: Tab) -> None:
    tab.sign_in(user="lister", fragment="#/chat/dir-code")
    ask(tab, "What files are in src/?")
    expect(tab.page.get_by_label("Call of list_directory")).to_contain_text("done")
    ask(tab, "What is in src/main.py?")
    expect(tab.page.get_by_label("Call of read_file")).to_contain_text("def main()")
    ask(tab, "Add a docstring to main() in src/main.py")
    expect(tab.page.get_by_label("Call of aider_edit")).to_contain_text("done")
    expect(tab.page.get_by_role("button", name="Send")).to_be_visible()
    tab.page.reload()
    expect(tab.page.get_by_label("Call of aider_edit")).to_contain_text("done")


def test_a_turn_shows_its_call_its_cost_and_what_the_history_holds(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.sign_in(TOKEN, "turner", "#/chat/poet")
    ask(tab, "calculate 6*7")
    call = tab.page.get_by_label("Call of calculator")
    expect(call).to_contain_text("done")
    await_end(tab)
    call.get_by_text("Result").click()
    expect(call).to_contain_text("42")
    expect(tab.page.locator(".turn .cost")).to_have_text("30 tokens · $0.00004")
    ask(tab, "And now?")
    await_end(tab)
    expect(tab.page.locator(".facts")).to_contain_text("Session: 45 tokens · $0.00006")
    [history] = writer.history("poet", "turner")
    assert shown(tab) == [message for message in history if message[0] != "tool" and message[1]]


def test_a_message_that_is_pasted_and_sent_at_once_leaves_the_field(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.sign_in(TOKEN, "paster", "#/chat/poet")
    expect(message_box(tab)).to_be_focused()
    message_box(tab).evaluate(PASTE_AND_SEND)
    await_end(tab)
    expect(message_box(tab)).to_have_value("")
    assert shown(tab) == [("user", "One"), ("assistant", "You said: One.")]


def test_what_is_typed_while_the_agent_changes_stays_with_the_agent_before(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.sign_in(TOKEN, "hasty", "#/chat/poet")
    expect(message_box(tab)).to_be_focused()
    tab.page.evaluate(TYPE_AND_CHANGE, "clerk")
    expect(tab.page.get_by_role("heading", name="clerk")).to_be_visible()
    expect(message_box(tab)).to_have_value("")
    choose(tab, "poet")
    expect(message_box(tab)).to_have_value("For the poet")


def test_a_title_of_one_long_word_does_not_widen_the_page(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.sign_in(TOKEN, "longwinded", "#/chat/poet")
    ask(tab, "DONAU" * 200)
    await_end(tab)
    expect(tab.page.get_by_role("heading", name="DONAUDONAU")).to_be_visible()
    title = tab.page.locator(".conversation h1")
    assert title.evaluate("(title) => title.scrollWidth <= title.clientWidth")


def test_switching_agents_while_an_answer_streams_loses_nothing(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    story = writer.model.begin("Tell me a story")
    tab.sign_in(TOKEN, "switcher", "#/chat/poet")
    for line in range(30):
        story.write(f"Line {line}.\n\n")
    ask(tab, "Tell me a story")
    expect(log(tab).get_by_text("Line 29.")).to_be_visible()
    message_box(tab).fill("a draft for the poet")
    log(tab).evaluate("log => { log.scrollTop = 100 }")
    tab.page.wait_for_timeout(100)
    choose(tab, "clerk")
    expect(message_box(tab)).to_have_value("")
    story.write("Meanwhile.\n\n")
    ask(tab, "Hello")
    await_end(tab)
    message_box(tab).fill("a draft for the clerk")
    choose(tab, "poet")
    expect(log(tab).get_by_text("Meanwhile.")).to_be_attached()
    expect(message_box(tab)).to_have_value("a draft for the poet")
    assert log(tab).evaluate("log => log.scrollTop") == 100
    story.write("The end.")
    story.end()
    await_end(tab)
    assert log(tab).evaluate("log => log.scrollTop") == 100
    assert tab.page.locator(".turn").inner_text().count("Line 7.") == 1
    choose(tab, "clerk")
    expect(message_box(tab)).to_have_value("a draft for the clerk")
    tab.page.reload()
    expect(message_box(tab)).to_have_value("a draft for the clerk")


def test_the_log_stays_at_its_end_while_an_answer_grows(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    story = writer.model.begin("Go on and on")
    tab.sign_in(TOKEN, "follower", "#/chat/poet")
    ask(tab, "Go on and on")
    for line in range(60):
        story.write(f"Line {line}.\n\n")
    expect(log(tab).get_by_text("Line 59.")).to_be_in_viewport()
    story.end()
    await_end(tab)
    expect(log(tab).get_by_text("Line 59.")).to_be_in_viewport()


def test_a_long_conversation_scrolls_in_its_log_and_not_with_the_page(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.sign_in(TOKEN, "scroller", "#/chat/poet")
    for question in ("A long one" + "\n." * 100, "Another"):
        ask(tab, question)
        await_end(tab)
    log(tab).evaluate("(log) => { log.scrollTop = 0; }")
    assert log(tab).evaluate("(log) => log.scrollHeight > log.clientHeight")
    assert tab.page.evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_another_session_can_be_opened_while_one_is_answered(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    story = writer.model.begin("Take your time")
    tab.sign_in(TOKEN, "patient", "#/chat/poet")
    ask(tab, "Take your time")
    story.write("So far. ")
    expect(log(tab).get_by_text("So far.")).to_be_visible()
    tab.page.get_by_role("link", name="New session").click()
    expect(message_box(tab)).to_be_focused()
    ask(tab, "Quick one")
    await_end(tab)
    tab.page.get_by_role("navigation", name="Sessions").get_by_role("link", name="Take your time").click()
    expect(log(tab).get_by_text("So far.")).to_be_visible()
    story.write("Done.")
    story.end()
    await_end(tab)
    assert shown(tab) == [("user", "Take your time"), ("assistant", "So far. Done.")]
    assert sorted(len(history) for history in writer.history("poet", "patient")) == [2, 2]


def test_tabs_and_browsers_show_one_turn_and_a_stop_ends_it_in_all(browser: Browser, new: New, writer: Writer) -> None:
    first, second = new(writer.url), new(writer.url)
    story = writer.model.begin("An endless story")
    first.sign_in(TOKEN, "doubled", "#/chat/poet")
    ask(first, "An endless story")
    story.write("Once upon a time ")
    expect(log(first).get_by_text("Once upon a time")).to_be_visible()
    fragment = first.page.evaluate("location.hash")
    second.sign_in(TOKEN, "doubled", fragment)
    with browser.new_context() as elsewhere:
        third = new_tab(elsewhere, writer.url)
        third.sign_in(TOKEN, "doubled", fragment)
        for tab in (second, third):
            expect(log(tab).get_by_text("Once upon a time")).to_be_visible()
            expect(tab.page.get_by_text("A message from another tab or device is being answered.")).to_be_visible()
        message_box(third).press("Escape")
        for tab in (first, second, third):
            await_end(tab)
            assert shown(tab) == [("user", "An endless story"), ("assistant", "Once upon a time")]
        assert third.faults == []
    assert [stripped(history) for history in writer.history("poet", "doubled")] == [shown(first)]


def test_an_open_tab_shows_what_another_one_adds(new: New, writer: Writer) -> None:
    first, second = new(writer.url), new(writer.url)
    first.sign_in(TOKEN, "watcher", "#/chat/poet")
    ask(first, "One")
    await_end(first)
    second.sign_in(TOKEN, "watcher", first.page.evaluate("location.hash"))
    ask(second, "Two")
    await_end(second)
    first.page.evaluate("dispatchEvent(new Event('focus'))")
    expect(log(first).get_by_text("You said: Two.")).to_be_visible()
    assert shown(first) == shown(second)


def test_a_busy_session_offers_to_follow_or_stop_its_turn(new: New, writer: Writer) -> None:
    first, second = new(writer.url), new(writer.url)
    second.expects_failed_requests = True
    for tab in (first, second):
        tab.sign_in(TOKEN, "busy", "#/chat/poet" if tab is first else first.page.evaluate("location.hash"))
        if tab is first:
            ask(first, "One")
            await_end(first)
    story = writer.model.begin("Two")
    expect(log(second).get_by_text("You said: One.")).to_be_visible()
    ask(first, "Two")
    story.write("Being written ")
    expect(log(first).get_by_text("Being written")).to_be_visible()
    ask(second, "Three")
    expect(second.page.get_by_role("alert")).to_contain_text("Follow or stop it")
    expect(message_box(second)).to_have_value("Three")
    second.page.get_by_role("button", name="Follow it").click()
    expect(log(second).get_by_text("Being written")).to_be_visible()
    second.page.get_by_role("button", name="Stop", exact=True).click()
    for tab in (first, second):
        await_end(tab)
    message_box(second).press("Enter")
    await_end(second)
    assert [text for role, text in shown(second) if role == "user"] == ["One", "Two", "Three"]


def test_refused_messages_return_to_the_draft_with_what_to_do(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True
    tab.sign_in(TOKEN, "refused", "#/chat/poet")
    answers = [
        (429, "rate_limited", {"Retry-After": "7"}, "Try again in 7 seconds."),
        (429, "budget_exceeded", {"Retry-After": "2678400"}, "Try again in 31 days."),
        (413, "payload_too_large", {}, "Shorten it"),
        (503, "storage_unavailable", {}, "Try again in a moment."),
    ]
    ids: list[str] = []
    for status, code, headers, advice in answers:
        body = json.dumps({"error": {"code": code, "message": "No.", "details": {}}, "request_id": "req_1"})

        tab.page.route("**/c1/agents/poet/chat", refusal(ids, status, headers, body))
        ask(tab, "Please")
        expect(tab.page.get_by_role("alert")).to_contain_text(advice)
        expect(message_box(tab)).to_have_value("Please")
        tab.page.unroute("**/c1/agents/poet/chat")
    assert writer.history("poet", "refused") == [], "a refused first message leaves no session"
    message_box(tab).press("Enter")
    await_end(tab)
    assert len(set(ids)) == 1, "a message that is sent again keeps its id"
    assert writer.history("poet", "refused") == [[("user", "Please"), ("assistant", "You said: Please.")]]


def refusal(ids: list[str], status: int, headers: dict[str, str], body: str) -> Callable[[Route], None]:
    def refuse(route: Route) -> None:
        ids.append((route.request.post_data_json or {})["message_id"])
        route.fulfill(status=status, headers=headers, body=body, content_type="application/json")

    return refuse


def test_a_session_deleted_elsewhere_keeps_the_draft_for_a_new_one(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True
    tab.sign_in(TOKEN, "deleted", "#/chat/poet")
    ask(tab, "One")
    await_end(tab)
    session = tab.page.evaluate("location.hash").split("/")[-1]
    with writer.gateway.client(TOKEN, "deleted") as client:
        client.delete(f"/a1/agents/poet/sessions/{session}").raise_for_status()
    ask(tab, "Two")
    expect(tab.page.get_by_role("alert")).to_contain_text("The session was deleted.")
    expect(message_box(tab)).to_have_value("Two")
    tab.page.reload()
    tab.page.get_by_role("link", name="Begin a new session").click()
    expect(message_box(tab)).to_have_value("Two")
    message_box(tab).press("Enter")
    await_end(tab)
    assert writer.history("poet", "deleted") == [[("user", "Two"), ("assistant", "You said: Two.")]]


def test_sessions_are_listed_by_pages_opened_and_deleted(new: New, writer: Writer) -> None:
    with writer.gateway.client(TOKEN, "collector") as client:
        for number in range(52):
            client.post("/a1/agents/clerk/sessions", json={"title": f"Session {number}."}).raise_for_status()
    tab = new(writer.url)
    tab.sign_in(TOKEN, "collector", "#/chat/clerk")
    sessions = tab.page.get_by_role("navigation", name="Sessions")
    expect(sessions.get_by_role("listitem")).to_have_count(50)
    sessions.get_by_role("button", name="Show more").click()
    expect(sessions.get_by_role("listitem")).to_have_count(52)
    sessions.get_by_role("link", name="Session 51.").click()
    expect(tab.page.get_by_role("heading", name="Session 51.")).to_be_visible()
    sessions.get_by_role("button", name="Delete the session Session 51.").click()
    dialog = tab.page.get_by_role("dialog", name="Delete a session")
    expect(dialog.get_by_role("button", name="Keep it")).to_be_focused()
    dialog.get_by_role("button", name="Keep it").click()
    expect(sessions.get_by_role("button", name="Delete the session Session 51.")).to_be_focused()
    sessions.get_by_role("button", name="Delete the session Session 51.").click()
    dialog.get_by_role("button", name="Delete it").click()
    expect(tab.page.get_by_role("heading", name="clerk")).to_be_visible()
    expect(message_box(tab)).to_be_focused()
    expect(sessions.get_by_role("link", name="Session 51.")).to_have_count(0)


def test_an_archived_session_leads_to_its_successor(new: New, writer: Writer) -> None:
    with writer.gateway.client(TOKEN, "archivist") as client:
        path = "/a1/agents/clerk/sessions"
        session = client.post(path, json={"title": "Long", "compact_keep_last_n": 2}).raise_for_status().json()["id"]
        for number in range(4):
            client.post(f"{path}/{session}/messages", json={"message": f"Message {number}"}).raise_for_status()
        client.post(f"{path}/{session}/compact").raise_for_status()
    tab = new(writer.url)
    tab.sign_in(TOKEN, "archivist", f"#/chat/clerk/{session}")
    expect(message_box(tab)).to_have_count(0)
    tab.page.get_by_role("link", name="It continues here.").click()
    expect(tab.page.get_by_role("link", name="Earlier part")).to_be_visible()
    ask(tab, "And on")
    await_end(tab)
    expect(log(tab).get_by_text("You said: And on.")).to_be_visible()
    tab.page.get_by_role("link", name="Earlier part").click()
    expect(tab.page.get_by_text("This session is archived")).to_be_visible()


def test_an_operator_goes_on_in_the_session_that_the_gateway_names(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True  # the operator exists from its first run on
    bodies = sent_messages(tab)
    tab.sign_in(TOKEN, "keeper", "#/chat/diary")
    expect(tab.page.get_by_text("This agent goes on in one session")).to_be_visible()
    expect(tab.page.get_by_role("link", name="New session")).to_have_count(0)
    ask(tab, "Monday")
    await_end(tab)
    tab.page.evaluate("sessionStorage.removeItem('spass:open:diary')")
    tab.open("#/chat/diary")
    tab.page.reload()
    expect(tab.page.locator(".question")).to_contain_text("Monday")
    ask(tab, "Tuesday")
    await_end(tab)
    assert [sorted(body) for body in bodies] == [["message_id", "messages"]] * 2
    [history] = writer.history("diary", "keeper")
    assert [text for role, text in history if role == "user"] == ["Monday", "Tuesday"]

    tab.page.get_by_role("button", name="Delete the session").click()
    expect(tab.page.get_by_role("dialog")).to_contain_text("Delete “Session of ")
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(tab.page.get_by_text("This agent goes on in one session")).to_be_visible()
    ask(tab, "Wednesday")
    await_end(tab)
    [history] = writer.history("diary", "keeper")
    assert [text for role, text in history if role == "user"] == ["Wednesday"]


def test_an_agent_that_is_gone_is_named_and_another_can_be_chosen(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True
    tab.sign_in(TOKEN, "leaver", "#/chat/removed/ses_00000000000000000000000000")
    expect(tab.page.get_by_role("alert").first).to_contain_text("The agent is gone")
    choose(tab, "clerk")
    ask(tab, "Hello")
    await_end(tab)
    assert shown(tab)[-1] == ("assistant", "You said: Hello.")


def test_a_token_revoked_in_mid_stream_signs_out_with_the_reason(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True
    story = writer.model.begin("A secret")
    tab.sign_in(TOKEN, "revoked", "#/chat/poet")
    ask(tab, "A secret")
    story.write("Half of it ")
    expect(log(tab).get_by_text("Half of it")).to_be_visible()
    refusal = json.dumps({"error": {"code": "invalid_token", "message": "No.", "details": {}}, "request_id": "req_1"})
    tab.page.route("**/a1/**", lambda route: route.fulfill(status=401, body=refusal, content_type="application/json"))
    story.end()
    expect(tab.page.get_by_role("alert")).to_contain_text("does not accept the token any more")
    expect(log(tab).get_by_text("Half of it")).to_have_count(0)
    assert signed_out(tab.page)


def signed_out(page: Page) -> bool:
    return (page.evaluate("sessionStorage.length"), page.evaluate("location.hash")) == (0, "")
