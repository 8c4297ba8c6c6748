"""Indices: from files to a search, their list and their documents."""

import json

from playwright.sync_api import expect

from tests.e2e.conftest import Gateway
from tests.page.accessibility import grave_findings
from tests.page.filling import ANIMALS, GUIDE, add, append, bucket_of, file, sent_to
from tests.page.tab import Tab


def test_files_become_a_new_index_that_is_searched(sender: Tab, standin: Gateway, index: str) -> None:
    sender.sign_in(fragment="#/indices")
    posts = sent_to(sender, bucket_of(standin))
    sender.page.get_by_label("New index").fill(index)
    sender.page.get_by_role("button", name="Open").click()
    expect(sender.page.locator("main")).to_contain_text("There is no index of this name yet")
    add(sender, file("guide.md", GUIDE), file("animals.csv", ANIMALS))
    uploads = sender.page.get_by_role("list", name="Uploads").get_by_role("listitem")
    guide = uploads.filter(has_text="guide.md")
    animals = uploads.filter(has=sender.page.get_by_text("animals.csv"))
    expect(guide).to_contain_text("succeeded", timeout=60_000)
    expect(animals.first).to_contain_text("2 documents ingested, 1 failed", timeout=60_000)
    expect(sender.page.locator("#announcements")).to_contain_text("animals.csv: succeeded, 2 documents ingested.")
    expect(animals.first).to_contain_text("Line 3")
    expect(animals.first).to_contain_text("csv_bad_row")
    expect(sender.page.get_by_role("list", name="Documents")).to_contain_text("bees")

    sender.page.get_by_label("Search for").fill("When do I get the money for a journey?")
    sender.page.keyboard.press("Enter")
    first = sender.page.get_by_role("list", name="Results").get_by_role("listitem").first
    expect(first).to_contain_text("Trips are paid within 30 days.")
    expect(first).to_contain_text("score 0.")
    expect(first).to_contain_text("guide.md")

    assert [request.method for request in posts] == ["POST", "POST"]
    for request in posts:
        assert not {"authorization", "cookie", "spass-user-id"} & {name.lower() for name in request.all_headers()}
    sender.page.reload()
    expect(guide).to_contain_text("succeeded")
    expect(animals.first).to_contain_text("csv_bad_row")


def test_an_index_of_many_documents_asks_for_one_page(sender: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {f"d{number:03}": f"Text of document {number}." for number in range(60)})
    sender.sign_in(fragment="#/indices")
    requests = sent_to(sender, "/documents")
    row = sender.page.get_by_role("row").filter(has_text=index)
    expect(row.get_by_role("cell").first).to_have_text("60")
    row.get_by_role("link").click()
    documents = sender.page.get_by_role("list", name="Documents").locator("> li")
    expect(documents).to_have_count(20)
    expect(documents.last).to_contain_text("Text of document 19.")
    assert len(requests) == 1
    sender.page.get_by_role("button", name="Show more").click()
    expect(documents).to_have_count(40)
    assert len(requests) == 2


def test_what_documents_hold_is_shown_as_text(sender: Tab, standin: Gateway, index: str) -> None:
    hostile = "<img src=x onerror=alert(1)> \u202etxt.exe " + "long " * 1000
    append(standin, index, {"hostile": hostile})
    sender.sign_in(fragment=f"#/indices/{index}")
    document = sender.page.get_by_role("list", name="Documents").locator("> li")
    expect(document).to_contain_text("<img src=x onerror=alert(1)>")
    expect(document.locator("img")).to_have_count(0)
    document.get_by_text("The whole text").click()
    expect(document.locator("details")).to_contain_text(hostile.strip()[-400:])


def test_a_search_that_is_refused_says_why_and_can_be_repeated(sender: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {"one": "A text."})
    sender.page.route("**/query", lambda route: route.abort("connectionreset"))
    sender.sign_in(fragment=f"#/indices/{index}")
    sender.page.get_by_label("Search for").fill("text")
    sender.page.get_by_role("button", name="Search").click()
    expect(sender.page.get_by_role("alert")).to_contain_text("The gateway does not answer.")
    sender.page.unroute("**/query")
    sender.page.get_by_role("button", name="Try again").click()
    expect(sender.page.get_by_role("list", name="Results")).to_contain_text("A text.")


def test_a_tenant_without_indices_is_told_how_to_begin(sender: Tab) -> None:
    empty = json.dumps({"indices": [], "next_cursor": None})
    sender.page.route("**/a1/rag/indices?*", lambda route: route.fulfill(body=empty, content_type="application/json"))
    sender.sign_in(fragment="#/indices")
    expect(sender.page.locator("main")).to_contain_text("There are no indices yet.")


def test_a_name_that_no_index_can_have_is_refused(sender: Tab) -> None:
    sender.sign_in(fragment="#/indices/%2Fetc")
    expect(sender.page.get_by_role("alert")).to_contain_text("An index cannot have the name “/etc”")


def test_the_views_have_no_serious_finding(sender: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {"one": "A text.", "two": "Another text. " * 100})
    sender.sign_in(fragment="#/indices")
    expect(sender.page.get_by_role("link", name=index)).to_be_visible()
    assert grave_findings(sender.page) == []
    sender.page.get_by_role("link", name=index).click()
    add(sender, file("animals.csv", ANIMALS), file("photo.png", b"x"))
    expect(sender.page.get_by_role("list", name="Uploads")).to_contain_text("csv_bad_row", timeout=60_000)
    sender.page.get_by_label("Search for").fill("text")
    sender.page.keyboard.press("Enter")
    expect(sender.page.get_by_role("list", name="Results")).to_be_visible()
    assert grave_findings(sender.page) == []
