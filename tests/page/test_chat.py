"""Chatting with an agent of the stand-in model."""

from playwright.sync_api import expect

from tests.page.tab import Tab


def ask(tab: Tab, text: str) -> None:
    box = tab.page.get_by_label("Message", exact=True)
    box.fill(text)
    expect(tab.page.get_by_role("button", name="Send")).to_be_enabled()  # an answer may still be on its way
    box.press("Enter")


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
