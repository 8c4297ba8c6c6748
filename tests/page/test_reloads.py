"""Reloads, what the tab stores, and what signing out leaves."""

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from playwright.sync_api import Request, expect

from tests.page.chatting import ask, await_end, choose, log, message_box, sent_messages, shown
from tests.page.tab import Tab
from tests.page.writer import PAUSE, TOKEN, Writer

New = Callable[[str], Tab]
TURNS: Final = 17 if os.environ.get("SPASS_SOAK") else 2
RELOADS: Final = 3  # in each turn
WORDS: Final = 50
FILL: Final = """() => {
  for (let size = 1 << 22; size >= 1; size >>= 1) {
    try {
      for (;;) sessionStorage.setItem(`fill${Math.random()}`, "x".repeat(size));
    } catch {}
  }
}"""


def test_reloads_at_random_moments_end_with_exactly_the_history(new: New, writer: Writer) -> None:
    moments = random.Random(datetime.now(UTC).toordinal())
    tab = new(writer.url)
    tab.expects_failed_requests = True
    tab.sign_in(TOKEN, "reloader", "#/chat/poet")
    sent = sent_messages(tab)
    for turn in range(TURNS):
        question = f"words {WORDS + turn}"
        ask(tab, question)
        for _ in range(RELOADS):
            tab.page.wait_for_timeout(moments.uniform(0, WORDS * PAUSE * 1000 / RELOADS))
            tab.page.reload()
        message_box(tab).wait_for()
        if message_box(tab).input_value() == question:  # the reload came before the request
            message_box(tab).press("Enter")
        expect(tab.page.locator(".turn")).to_have_count(turn + 1)
        await_end(tab)
        expect(log(tab).get_by_text(f"word{WORDS + turn - 1}").last).to_be_visible()
        assert shown(tab) == [(role, text.strip()) for role, text in writer.history("poet", "reloader")[0]]
    assert len({message["message_id"] for message in sent}) == TURNS
    assert len(writer.history("poet", "reloader")) == 1


def test_a_message_that_a_reload_keeps_from_leaving_returns_to_the_draft(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True
    tab.sign_in(TOKEN, "early", "#/chat/poet")
    tab.page.route("**/c1/agents/poet/chat", lambda route: None)  # it hangs
    ask(tab, "Hurry")
    expect(log(tab).get_by_text("Hurry")).to_be_visible()
    expect(tab.page.locator("#sessions").get_by_text("No sessions yet.")).to_be_visible()
    tab.page.reload()
    expect(message_box(tab)).to_have_value("Hurry")
    expect(tab.page.get_by_role("alert")).to_contain_text("The message did not arrive")
    tab.page.unroute_all(behavior="ignoreErrors")
    message_box(tab).press("Enter")
    await_end(tab)
    assert writer.history("poet", "early") == [[("user", "Hurry"), ("assistant", "You said: Hurry.")]]


def test_a_first_message_is_found_after_a_reload_of_a_hidden_tab(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True
    story = writer.model.begin("Behind the scenes")
    tab.sign_in(TOKEN, "hidden", "#/chat/poet")
    message_box(tab).fill("Behind the scenes")
    expect(tab.page.get_by_role("button", name="Send")).to_be_enabled()
    tab.page.evaluate("() => { window.requestAnimationFrame = () => 1 }")  # a hidden tab is not rendered
    with tab.page.expect_request("**/c1/agents/poet/chat"):
        message_box(tab).press("Enter")
    tab.page.reload()
    expect(log(tab).get_by_text("Behind the scenes")).to_be_visible()
    story.write("Here.")
    story.end()
    await_end(tab)
    assert shown(tab) == [("user", "Behind the scenes"), ("assistant", "Here.")]


def test_stored_values_that_are_not_the_pages_are_ignored(tab: Tab) -> None:
    tab.sign_in(user="tinkerer", fragment="#/chat/concise-de")
    for draft, sent in (
        ("{", "{"),
        ("7", "{}"),
        ('{"text": 5}', "[null]"),
        ('{"text": "a", "returned": 1}', '[{"place": null}]'),
    ):
        tab.page.evaluate(
            "values => ['draft', 'sent'].map((name, i) => sessionStorage.setItem(`spass:${name}:concise-de`, values[i]))",
            [draft, sent],
        )
        tab.page.reload()
        expect(message_box(tab)).to_have_value("")
        expect(tab.page.get_by_text("Write a message to begin.")).to_be_visible()


def test_a_browser_without_storage_can_be_used_for_one_visit(tab: Tab) -> None:
    tab.page.add_init_script(
        "Object.defineProperty(window, 'sessionStorage', { get() { throw new DOMException('No.', 'SecurityError') } })"
    )
    tab.sign_in(user="private", fragment="#/chat/concise-de")
    expect(tab.page.get_by_role("alert")).to_contain_text("switched off: drafts are lost")
    message_box(tab).fill("Hello")
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_label("Token")).to_be_visible()


def test_a_full_session_storage_is_told_and_the_chat_goes_on(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.sign_in(TOKEN, "hoarder", "#/chat/poet")
    tab.page.evaluate(FILL)
    message_box(tab).fill("x" * 2000)
    expect(tab.page.get_by_role("alert")).to_contain_text("storage for this tab is full")
    ask(tab, "Still there?")
    await_end(tab)
    assert shown(tab) == [("user", "Still there?"), ("assistant", "You said: Still there?.")]


def test_a_clock_that_is_an_hour_off_changes_nothing(new: New, writer: Writer) -> None:
    for hours in (-1, 1):
        tab = new(writer.url)
        tab.page.clock.set_system_time(datetime.now(UTC) + timedelta(hours=hours))
        tab.sign_in(TOKEN, f"clock{hours + 1}", "#/chat/poet")
        ask(tab, "What time is it?")
        await_end(tab)
        assert shown(tab)[-1] == ("assistant", "You said: What time is it?.")


def test_signing_out_closes_every_stream_and_leaves_nothing(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    tab.expects_failed_requests = True
    ended: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("/chat"):
            ended.append(request.url)

    tab.page.on("requestfailed", note)
    tab.sign_in(TOKEN, "outgoing", "#/chat/poet")
    for agent in ("poet", "clerk"):
        choose(tab, agent)
        writer.model.begin(f"For {agent}").write("Something to read ")
        ask(tab, f"For {agent}")
        expect(log(tab).get_by_text("Something")).to_be_visible()
    message_box(tab).fill("a draft")
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_label("Token")).to_be_visible()
    tab.page.wait_for_timeout(300)
    assert sorted(url.split("/")[-2] for url in ended) == ["clerk", "poet"]
    assert tab.page.evaluate("[sessionStorage.length, localStorage.length, location.hash]") == [0, 0, ""]
    tab.page.reload()
    expect(tab.page.get_by_label("Token")).to_have_value("")


def test_the_token_is_in_the_session_storage_of_its_tab_alone(new: New, writer: Writer) -> None:
    tab = new(writer.url)
    addresses: list[str] = []
    tab.page.on("request", lambda request: addresses.append(f"{request.url} {request.post_data}"))
    tab.sign_in(TOKEN, "secretive", "#/chat/poet")
    ask(tab, "calculate 1+1")
    await_end(tab)
    tab.page.reload()
    await_end(tab)
    stored = tab.page.evaluate("JSON.stringify(sessionStorage)")
    assert stored.count(TOKEN) == 1
    addresses += tab.page.evaluate("[location.href, ...navigation.entries().map((entry) => entry.url)]")
    assert TOKEN not in " ".join(addresses)
    assert tab.page.context.cookies() == []
    assert tab.page.evaluate("[localStorage.length, document.cookie, history.state]") == [0, "", None]
    assert tab.page.evaluate("async () => [await caches.keys(), await indexedDB.databases()]") == [[], []]
    other = new(writer.url)
    other.open()
    expect(other.page.get_by_label("Token")).to_have_value("")
    folder = writer.gateway.home.parent
    assert {"home.log", "ministack.log"} <= {path.name for path in _files(folder)}
    assert [path for path in _files(folder) if TOKEN.encode() in path.read_bytes()] == []


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
