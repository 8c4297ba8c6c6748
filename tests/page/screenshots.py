"""Write the pictures of the page that the guide shows: `make screenshots`."""

import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.conftest import Gateway
from tests.page.chromium import ROOT, launch_chromium
from tests.page.tab import Tab

IMAGES: Final = ROOT / "docs" / "images"
QUESTIONS: Final = ("What files are in src/?", "What is in src/main.py?", "Add a docstring to main() in src/main.py")
DELETE: Final = "Delete the file docs/old-notes.md"
TO_LAST_CALL: Final = """
(log) => {
  const call = [...log.querySelectorAll(".call")].at(-1);
  log.scrollTop += call.getBoundingClientRect().top - log.getBoundingClientRect().top;
}
"""
DOCUMENT: Final = "Berlin has 3.9 million inhabitants and lies on the Spree."


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        gateway = Gateway(Path(folder) / "home")
        gateway.start()
        try:
            browser = launch_chromium(playwright, "--font-render-hinting=none")
            page = browser.new_page(viewport={"width": 1000, "height": 860}, color_scheme="light")
            _walk(page, gateway)
            browser.close()
        finally:
            gateway.stop()


def _walk(page: Page, gateway: Gateway) -> None:
    """Sign in, ask a director for an edit and a deletion, and look at every view."""
    with gateway.client() as client:
        headers = {"Content-Type": "application/octet-stream"}
        file = "/a1/workspaces/default/file?path=docs/old-notes.md"
        client.put(file, content=b"old\n", headers=headers).raise_for_status()
        document = {"id": "berlin", "text": DOCUMENT, "metadata": {"country": "Germany"}}
        client.post("/a1/rag/indices/cities/documents/append", json={"documents": [document]}).raise_for_status()
    tab = Tab(page, gateway.url)
    tab.open()
    _save(page, "sign-in")
    tab.sign_in(fragment="#/chat/dir-code")
    for number, question in enumerate(QUESTIONS):
        _ask(page, question, number + 1)
    page.locator("#log").evaluate(TO_LAST_CALL)
    _save(page, "chat")
    page.get_by_role("button", name="Dark", exact=True).click()
    _save(page, "chat-dark")
    page.get_by_role("button", name="Light", exact=True).click()
    _ask(page, DELETE, len(QUESTIONS) + 1)
    tab.view("Approvals")
    expect(page.locator("main.approvals").get_by_role("button", name="Approve")).to_be_visible()
    _save(page, "approval")
    tab.open("#/workspaces/default")
    page.locator("main.workspaces summary").get_by_text("src/").click()
    page.locator("main.workspaces").get_by_role("link", name="main.py").click()
    page.locator("main.workspaces .code").first.wait_for()
    _save(page, "workspaces")
    tab.open("#/indices/cities")
    page.locator("main.indices").get_by_text("Spree").first.wait_for()
    _save(page, "indices")
    tab.view("Usage")
    page.get_by_role("cell", name="dir-code").or_(page.get_by_role("rowheader", name="dir-code")).first.wait_for()
    _save(page, "usage")


def _ask(page: Page, text: str, turns: int) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn .cost")).to_have_count(turns, timeout=30_000)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def _save(page: Page, name: str) -> None:
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", caret="hide")


if __name__ == "__main__":
    main()
