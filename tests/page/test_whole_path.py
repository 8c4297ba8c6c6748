"""What a user does from one end to the other: chat, edits, approvals, restored files, knowledge and usage."""

import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, expect

from local.example_workspace import FILES
from spass.testing.http_server import serve
from tests.e2e.conftest import Gateway
from tests.e2e.scripted_directors import DOCSTRING, ScriptedModel
from tests.page.chatting import ask, await_end, choose, log, shown
from tests.page.filling import ANIMALS, add, append, file
from tests.page.prefix import behind
from tests.page.tab import Tab
from tests.page.test_approvals import waiting
from tests.page.test_keyboard import tab_to
from tests.page.test_usage import days, expected, figures, usage_of

New = Callable[[str], Tab]
BERLIN = "# Verkehr\n\nDie Straßenbahnlinie M10 fährt von Moabit bis Lichtenberg.\n".encode()


def call_of(tab: Tab, tool: str) -> Locator:
    return tab.page.get_by_label(f"Call of {tool}", exact=True)


def approval(tab: Tab) -> Locator:
    return tab.page.get_by_role("article", name="Approval of aider_edit").last


def ask_for_list_file_and_diff(tab: Tab, to_read: str, to_edit: str) -> None:
    """Ask the three questions, the last two in the words that the model understands, and see what arrives."""
    ask(tab, "What files are in src/?")
    expect(call_of(tab, "list_directory")).to_contain_text("main.py")
    ask(tab, to_read)
    expect(call_of(tab, "read_file")).to_contain_text("def main()")
    ask(tab, to_edit)
    expect(call_of(tab, "aider_edit").locator("figure.diff")).to_contain_text('"""')
    await_end(tab)


def read(gateway: Gateway, path: str, workspace: str = "default") -> str | None:
    with gateway.client() as client:
        answer = client.get(f"/a1/workspaces/{workspace}/file", params={"path": path})
    return answer.text if answer.is_success else None


def write(gateway: Gateway, path: str, text: str, workspace: str = "default") -> None:
    with gateway.client() as client:
        headers = {"Content-Type": "application/octet-stream"}
        address = f"/a1/workspaces/{workspace}/file?path={path}"
        client.put(address, content=text.encode(), headers=headers).raise_for_status()


def test_a_deletion_of_a_whole_story_is_restored_by_its_user(tab: Tab, standin: Gateway) -> None:
    path = f"docs/notes-{uuid4().hex[:6]}.md"
    for name, text in {**FILES, path: "keep me\n"}.items():  # other tests edit the files too
        write(standin, name, text)
    tab.sign_in(user="storyteller")
    choose(tab, "dir-code")
    ask_for_list_file_and_diff(tab, "What is in src/main.py?", "Add a docstring to main()")

    ask(tab, f"Delete the file {path}")
    expect(approval(tab)).to_be_visible()
    await_end(tab)  # the history replaces the running turn, and with it the buttons
    approval(tab).get_by_role("button", name="Deny").click()
    expect(approval(tab)).to_contain_text("Denied")
    assert read(standin, path) == "keep me\n"
    ask(tab, f"Delete the file {path}")
    expect(tab.page.get_by_role("article", name="Approval of aider_edit")).to_have_count(2)
    await_end(tab)
    approval(tab).get_by_role("button", name="Approve").click()
    expect(approval(tab)).to_contain_text("Executed")
    assert read(standin, path) is None

    tab.view("Workspaces").get_by_role("link", name="default").click()
    tab.page.get_by_role("link", name="Versions", exact=True).click()
    tab.page.get_by_role("link", name=re.compile(r"^Version \d")).first.click()
    expect(tab.page.locator("figure.diff")).to_contain_text("keep me")
    expect(tab.page.locator("main")).to_contain_text("storyteller")
    tab.page.get_by_role("checkbox").check()
    tab.page.get_by_role("button", name="Go back to version").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(tab.page.get_by_text("Restored: 1 file added")).to_be_visible()
    assert read(standin, path) == "keep me\n"

    tab.view("Chat")
    expect(call_of(tab, "list_directory")).to_be_visible()
    choose(tab, "architect")
    ask(tab, "Ask the code director to add a docstring to greet()")
    delegate = call_of(tab, "delegate")
    expect(delegate.get_by_label("Call of aider_edit", exact=True)).to_be_visible(timeout=60_000)
    await_end(tab)  # from now on the history is shown, which does not have the delegate's calls
    expect(delegate.get_by_label("Call of aider_edit", exact=True).locator("figure.diff")).to_be_visible()


def test_a_scripted_model_edits_a_file_that_the_page_then_shows(new: New, tmp_path: Path) -> None:
    model = ScriptedModel()
    with serve(model.respond) as upstream:
        gateway = Gateway(tmp_path / "home", environment={"OLLAMA_BASE_URL": upstream})
        gateway.start()
        try:
            tab = new(gateway.url)
            tab.sign_in(fragment="#/chat/dir-code")
            ask_for_list_file_and_diff(tab, "What's in src/main.py?", "Add a docstring to main()")
            assert shown(tab)[-1] == ("assistant", "That is all.")
            changed = read(gateway, "src/main.py")
            assert changed is not None
            assert DOCSTRING in changed
            assert any(request.is_from_aider for request in model.requests)
            tab.view("Workspaces").get_by_role("link", name="default").click()
            tab.page.locator("main summary").get_by_text("src/").click()
            tab.page.get_by_role("link", name="main.py").click()
            expect(tab.page.get_by_role("region", name="Code")).to_contain_text(DOCSTRING.strip())
            tab.page.close()  # it would go on asking a gateway that is gone
        finally:
            gateway.stop()


def test_uploaded_knowledge_answers_a_chat_and_is_counted(sender: Tab, standin: Gateway) -> None:
    sender.sign_in(user="reader", fragment="#/indices")
    sender.page.get_by_label("New index").fill("berlin-info")
    sender.page.get_by_role("button", name="Open").click()
    add(sender, file("verkehr.md", BERLIN), file("animals.csv", ANIMALS))
    uploads = sender.page.get_by_role("list", name="Uploads").get_by_role("listitem")
    animals = uploads.filter(has=sender.page.get_by_text("animals.csv")).first
    expect(animals).to_contain_text("2 documents ingested, 1 failed", timeout=60_000)
    expect(animals).to_contain_text("csv_bad_row")
    expect(uploads.filter(has_text="verkehr.md")).to_contain_text("succeeded")
    sender.page.get_by_label("Search for").fill("Wohin fährt die Straßenbahn M10?")
    sender.page.keyboard.press("Enter")
    found = sender.page.get_by_role("list", name="Results").get_by_role("listitem").first
    expect(found).to_contain_text("von Moabit bis Lichtenberg")

    sender.view("Chat")
    choose(sender, "berlin-rag")
    ask(sender, "Wohin fährt die Straßenbahn M10?")
    await_end(sender)
    expect(log(sender).locator(".markdown").last).to_contain_text("Lichtenberg")

    sender.view("Usage")
    by_agent = sender.page.get_by_role("region", name="Usage by agent")
    row = by_agent.get_by_role("row").filter(has_text="berlin-rag")
    expect(row).to_have_count(1)
    report = usage_of(standin, **days(7))
    [group] = [group for group in report["usage"] if group["key"] == "berlin-rag"]
    assert figures(row) == expected(group)
    assert figures(by_agent.get_by_role("row").last) == expected(report["total"])
    with standin.client() as client:
        client.delete("/a1/rag/indices/berlin-info").raise_for_status()


def test_decisions_restored_files_and_searches_need_no_mouse(tab: Tab, standin: Gateway) -> None:
    write(standin, "docs/old-notes.md", FILES["docs/old-notes.md"])
    waiting(standin, "keys")
    write(standin, "a.txt", "lost\n", "keys")
    append(standin, "keys", {"bees": "Bees live in hives."})
    with standin.client() as client:
        client.delete("/a1/workspaces/keys/file?path=a.txt").raise_for_status()
    keyboard = tab.page.keyboard
    tab.sign_in(user="keys", fragment="#/approvals")
    expect(approval(tab)).to_contain_text("Waits for you")
    tab_to(tab, ".approval input")
    keyboard.type("still needed")
    expect(approval(tab).get_by_role("button", name="Deny")).to_be_enabled()
    tab_to(tab, ".approval .primary + button")
    keyboard.press("Enter")
    expect(approval(tab)).to_contain_text("Denied")
    tab_to(tab, "nav [href='#/workspaces']", "Shift+Tab")
    for link in ("#/workspaces/keys", "#/workspaces/keys/versions", "#/workspaces/keys/versions/2"):
        keyboard.press("Enter")
        tab.page.locator(f"main [href='{link}']").first.wait_for()
        tab_to(tab, f"main [href='{link}']")
    keyboard.press("Enter")
    restore = tab.page.get_by_role("button", name="Go back to version 1")
    expect(restore).to_be_visible()
    restore.evaluate("button => { button.dataset.key = 'restore' }")
    tab_to(tab, "[data-key=restore]")
    keyboard.press("Enter")
    tab_to(tab, "dialog .primary")
    keyboard.press("Enter")
    expect(tab.page.get_by_text("Restored: 1 file added")).to_be_visible()
    tab_to(tab, "nav [href='#/indices']", "Shift+Tab")
    keyboard.press("Enter")
    tab.page.locator("main [href='#/indices/keys']").wait_for()
    tab_to(tab, "main [href='#/indices/keys']")
    keyboard.press("Enter")
    expect(tab.page.get_by_label("Search for")).to_be_visible()
    tab_to(tab, "input[type=search], main form input")
    keyboard.type("hives")
    keyboard.press("Enter")
    expect(tab.page.get_by_role("list", name="Results")).to_contain_text("Bees live in hives.")


@pytest.mark.parametrize("prefix", ["/dev", "/team/chat"])
def test_the_page_behind_a_prefix_asks_only_for_addresses_under_it(new: New, standin: Gateway, prefix: str) -> None:
    with behind(prefix, standin.url) as url:
        origin = url.removesuffix(prefix)
        tab = new(url)
        tab.allowed_origins.add(origin)
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url))
        tab.sign_in(user="prefixed", fragment="#/chat/dir-code")
        ask(tab, "What files are in src/?")
        expect(call_of(tab, "list_directory").last).to_contain_text("main.py")
        await_end(tab)
        tab.page.reload()
        expect(call_of(tab, "list_directory").last).to_contain_text("done")
        for view in ("Approvals", "Workspaces", "Indices", "Usage"):
            expect(tab.view(view).get_by_role("heading", level=1)).to_have_text(view)
            expect(tab.page.get_by_role("alert")).to_have_count(0)
        assert asked
        assert [address for address in asked if not address.startswith(f"{url}/")] == []
        streams = [address for address in asked if address.endswith("/chat")]
        assert streams == [f"{url}/c1/agents/dir-code/chat"]
        tab.page.close()  # it would go on asking a gateway that is gone
