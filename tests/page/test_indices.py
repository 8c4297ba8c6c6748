"""Indices: their list, their documents, the search, and uploads that go to the bucket."""

import json
import re
from collections.abc import Callable, Mapping
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import FilePayload, Request, Route, expect

from spass.rag.index.documents import MAX_UPLOAD_BYTES
from tests.e2e.conftest import Gateway
from tests.e2e.upload_client import upload, wait_for_upload
from tests.page.axe import findings
from tests.page.tab import Tab

GUIDE = b"# Travel\n\nTrips are paid within 30 days.\n\n# Leave\n\nParents may take a year of leave.\n"
ANIMALS = (
    b"id,text,town\nbees,Bees live in hives.,Berlin\nbroken,this row,has,too many cells\nwhales,Whales live in the sea.,Kiel\n"
)


@pytest.fixture
def index() -> str:
    return f"handbook-{uuid4().hex[:8]}"


@pytest.fixture
def tab(new: Callable[[str], Tab], standin: Gateway) -> Tab:
    """A tab that may send to the bucket. The page asks for an index that may not exist, which the console reports."""
    tab = new(standin.url)
    tab.allowed_origins.add(bucket_of(standin))
    tab.expects_failed_requests = True
    return tab


def bucket_of(gateway: Gateway) -> str:
    policy = httpx.get(f"{gateway.url}/ui", trust_env=False).headers["Content-Security-Policy"]
    found = re.search(r"connect-src 'self' (\S+);", policy)
    assert found
    return found[1]


def file(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def add(tab: Tab, *files: FilePayload) -> None:
    tab.page.get_by_label("Add files").set_input_files(files)


def append(gateway: Gateway, index: str, texts: Mapping[str, str]) -> None:
    documents = [{"id": name, "text": text, "metadata": {"place": "shelf"}} for name, text in texts.items()]
    with gateway.client() as client:
        client.post(f"/a1/rag/indices/{index}/documents/append", json={"documents": documents}).raise_for_status()


def sent_to(tab: Tab, part: str) -> list[Request]:
    """Return the list of requests whose address has ``part``. It grows with each request."""
    requests: list[Request] = []
    tab.page.on("request", lambda request: requests.append(request) if part in request.url else None)
    return requests


def test_files_become_a_new_index_that_is_searched(tab: Tab, standin: Gateway, index: str) -> None:
    tab.sign_in(fragment="#/indices")
    posts = sent_to(tab, bucket_of(standin))
    tab.page.get_by_label("New index").fill(index)
    tab.page.get_by_role("button", name="Open").click()
    expect(tab.page.locator("main")).to_contain_text("There is no index of this name yet")
    add(tab, file("guide.md", GUIDE), file("animals.csv", ANIMALS))
    uploads = tab.page.get_by_role("list", name="Uploads").get_by_role("listitem")
    guide = uploads.filter(has_text="guide.md")
    animals = uploads.filter(has=tab.page.get_by_text("animals.csv"))
    expect(guide).to_contain_text("succeeded", timeout=60_000)
    expect(animals.first).to_contain_text("2 documents ingested, 1 failed", timeout=60_000)
    expect(tab.page.locator("#announcements")).to_contain_text("animals.csv: succeeded, 2 documents ingested.")
    expect(animals.first).to_contain_text("Line 3")
    expect(animals.first).to_contain_text("csv_bad_row")
    expect(tab.page.get_by_role("list", name="Documents")).to_contain_text("bees")

    tab.page.get_by_label("Search for").fill("When do I get the money for a journey?")
    tab.page.keyboard.press("Enter")
    first = tab.page.get_by_role("list", name="Results").get_by_role("listitem").first
    expect(first).to_contain_text("Trips are paid within 30 days.")
    expect(first).to_contain_text("score 0.")
    expect(first).to_contain_text("guide.md")

    assert [request.method for request in posts] == ["POST", "POST"]
    for request in posts:
        assert not {"authorization", "cookie", "spass-user-id"} & {name.lower() for name in request.all_headers()}
    tab.page.reload()
    expect(guide).to_contain_text("succeeded")
    expect(animals.first).to_contain_text("csv_bad_row")


def test_files_that_break_a_rule_are_named_and_not_sent(tab: Tab, index: str) -> None:
    tab.sign_in(fragment=f"#/indices/{index}")
    expect(tab.page.locator("main")).to_contain_text("There is no index of this name yet")
    requests = sent_to(tab, "uploads")
    before = len(requests)
    add(tab, file("photo.png", b"x"), file("nothing.md", b""), file("noending", b"x"))
    refused = tab.page.get_by_role("alert")
    expect(refused).to_contain_text("photo.png: Its name must end in .jsonl, .csv, .txt, .md.")
    expect(refused).to_contain_text("nothing.md: It is empty.")
    expect(refused).to_contain_text("noending: Its name must end in")
    assert len(requests) == before


def test_the_limit_of_a_file_is_that_of_the_gateway(tab: Tab) -> None:
    tab.sign_in(fragment="#/indices")
    rule = "async (size) => (await import('./ui/upload.js')).brokenRule({name: 'Guide.MD', size})"
    assert tab.page.evaluate(rule, MAX_UPLOAD_BYTES) is None
    assert "at most" in tab.page.evaluate(rule, MAX_UPLOAD_BYTES + 1)


def test_a_file_that_the_bucket_refused_is_sent_with_a_new_form(tab: Tab, standin: Gateway, index: str) -> None:
    refusals: list[str] = []

    def refuse_once(route: Route) -> None:
        if refusals:
            route.continue_()
            return
        refusals.append(route.request.post_data or "")
        expired = "<Error><Code>AccessDenied</Code><Message>Invalid according to Policy: Policy expired.</Message></Error>"
        route.fulfill(status=403, body=expired, headers={"Access-Control-Allow-Origin": "*", "Content-Type": "text/xml"})

    tab.page.route(f"{bucket_of(standin)}/**", refuse_once)
    tab.sign_in(fragment=f"#/indices/{index}")
    add(tab, file("guide.md", GUIDE))
    expect(tab.page.get_by_role("alert")).to_contain_text("Policy expired")
    forms = sent_to(tab, "/uploads")
    tab.page.get_by_role("button", name="Send guide.md again").click()
    uploads = tab.page.get_by_role("list", name="Uploads")
    expect(uploads).to_contain_text("succeeded", timeout=60_000)
    assert [request.method for request in forms].count("POST") == 1
    assert re.findall(r'; name="([^"]*)"', refusals[0])[-1] == "file"


def test_a_lost_connection_keeps_the_file_and_its_form(tab: Tab, standin: Gateway, index: str) -> None:
    tab.page.route(f"{bucket_of(standin)}/**", lambda route: route.abort("connectionreset"))
    tab.sign_in(fragment=f"#/indices/{index}")
    add(tab, file("guide.md", GUIDE))
    expect(tab.page.get_by_role("alert")).to_contain_text("broke off")
    tab.page.unroute(f"{bucket_of(standin)}/**")
    tab.page.get_by_role("button", name="Send guide.md again").click()
    expect(tab.page.get_by_role("list", name="Uploads")).to_contain_text("succeeded", timeout=60_000)
    with standin.client() as client:
        uploads = client.get(f"/a1/rag/indices/{index}/uploads").json()["uploads"]
    assert [upload["status"] for upload in uploads] == ["succeeded"]


def test_a_file_whose_arrival_was_not_heard_is_not_sent_twice(tab: Tab, standin: Gateway, index: str) -> None:
    def deliver_and_break_off(route: Route) -> None:
        route.fetch()
        route.abort("connectionreset")

    tab.page.route(f"{bucket_of(standin)}/**", deliver_and_break_off)
    tab.sign_in(fragment=f"#/indices/{index}")
    posts = sent_to(tab, bucket_of(standin))
    add(tab, file("guide.md", GUIDE))
    expect(tab.page.get_by_role("alert")).to_contain_text("broke off")
    with standin.client() as client:
        sent = client.get(f"/a1/rag/indices/{index}/uploads").json()["uploads"][0]["id"]
        assert upload(client, index, sent, wait_for_upload)["status"] == "succeeded"
    tab.page.get_by_role("button", name="Send guide.md again").click()
    expect(tab.page.get_by_role("list", name="Uploads")).to_contain_text("succeeded")
    assert len(posts) == 1


def test_files_are_sent_one_after_another_and_can_be_cancelled(tab: Tab, standin: Gateway, index: str) -> None:
    held: list[Route] = []
    tab.page.route(f"{bucket_of(standin)}/**", lambda route: held.append(route))
    tab.sign_in(fragment=f"#/indices/{index}")
    add(tab, file("first.md", GUIDE), file("second.md", GUIDE))
    files = tab.page.get_by_role("list", name="Files to send").get_by_role("listitem")
    expect(files.nth(0)).to_contain_text("is sent")
    expect(files.nth(1)).to_contain_text("waits for its turn")
    tab.page.get_by_role("button", name="Cancel second.md").click()
    tab.page.get_by_role("button", name="Cancel first.md").focus()
    tab.page.keyboard.press("Enter")
    expect(files.nth(0)).to_contain_text("cancelled")
    expect(tab.page.get_by_role("button", name="Send first.md again")).to_be_focused()
    expect(files.nth(1)).to_contain_text("cancelled")
    tab.page.get_by_role("button", name="Remove second.md").click()
    expect(files).to_have_count(1)
    tab.page.unroute(f"{bucket_of(standin)}/**")
    tab.page.get_by_role("button", name="Send first.md again").click()
    expect(tab.page.get_by_role("list", name="Uploads")).to_contain_text("succeeded", timeout=60_000)
    assert len(held) == 1


def test_signing_out_stops_a_file_that_is_being_sent(tab: Tab, standin: Gateway, index: str) -> None:
    tab.page.route(f"{bucket_of(standin)}/**", lambda _: None)
    tab.sign_in(fragment=f"#/indices/{index}")
    with tab.page.expect_request(f"{bucket_of(standin)}/**"):
        add(tab, file("guide.md", GUIDE))
    with tab.page.expect_event("requestfailed", lambda request: bucket_of(standin) in request.url):
        tab.page.get_by_role("button", name="Sign out").click()


def test_ten_thousand_errors_are_shown_in_steps(tab: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {"one": "A text."})
    errors = [{"line": line, "code": "csv_bad_row", "message": "A row with too many cells."} for line in range(1, 10_001)]
    state = {"id": "upl_1", "filename": "big.csv", "status": "succeeded", "bytes_done": 9, "bytes_total": 9}
    state |= {"documents_ingested": 0, "documents_failed": 20_000, "errors": errors}
    answer = json.dumps({"uploads": [state], "next_cursor": None})
    tab.page.route("**/uploads?*", lambda route: route.fulfill(body=answer, content_type="application/json"))
    tab.sign_in(fragment=f"#/indices/{index}")
    uploads = tab.page.get_by_role("list", name="Uploads")
    expect(uploads).to_contain_text("The gateway keeps the first 10,000 of 20,000 errors.")
    lines = uploads.get_by_text(re.compile("^Line"))
    expect(lines).to_have_count(5)
    uploads.get_by_text("9,995 more errors").click()
    expect(lines).to_have_count(205)
    uploads.get_by_role("button", name="Show 200 more").click()
    expect(lines).to_have_count(405)


def test_an_index_of_many_documents_asks_for_one_page(tab: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {f"d{number:03}": f"Text of document {number}." for number in range(60)})
    tab.sign_in(fragment="#/indices")
    requests = sent_to(tab, "/documents")
    row = tab.page.get_by_role("row").filter(has_text=index)
    expect(row.get_by_role("cell").first).to_have_text("60")
    row.get_by_role("link").click()
    documents = tab.page.get_by_role("list", name="Documents").locator("> li")
    expect(documents).to_have_count(20)
    expect(documents.last).to_contain_text("Text of document 19.")
    assert len(requests) == 1
    tab.page.get_by_role("button", name="Show more").click()
    expect(documents).to_have_count(40)
    assert len(requests) == 2


def test_what_documents_hold_is_shown_as_text(tab: Tab, standin: Gateway, index: str) -> None:
    hostile = "<img src=x onerror=alert(1)> \u202etxt.exe " + "long " * 1000
    append(standin, index, {"hostile": hostile})
    tab.sign_in(fragment=f"#/indices/{index}")
    document = tab.page.get_by_role("list", name="Documents").locator("> li")
    expect(document).to_contain_text("<img src=x onerror=alert(1)>")
    expect(document.locator("img")).to_have_count(0)
    document.get_by_text("The whole text").click()
    expect(document.locator("details")).to_contain_text(hostile.strip()[-400:])


def test_a_search_that_is_refused_says_why_and_can_be_repeated(tab: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {"one": "A text."})
    tab.page.route("**/query", lambda route: route.abort("connectionreset"))
    tab.sign_in(fragment=f"#/indices/{index}")
    tab.page.get_by_label("Search for").fill("text")
    tab.page.get_by_role("button", name="Search").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("The gateway does not answer.")
    tab.page.unroute("**/query")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.page.get_by_role("list", name="Results")).to_contain_text("A text.")


def test_an_upload_is_polled_until_the_view_closes(tab: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {"one": "A text."})
    state = {"id": "upl_1", "filename": "big.csv", "status": "running", "bytes_done": 4, "bytes_total": 9}
    state |= {"documents_ingested": 3, "documents_failed": 0, "errors": []}
    pages = json.dumps({"uploads": [state], "next_cursor": None})
    tab.page.route("**/uploads?*", lambda route: route.fulfill(body=pages, content_type="application/json"))
    later = json.dumps(state | {"bytes_done": 8, "documents_ingested": 6})
    tab.page.route("**/uploads/upl_1", lambda route: route.fulfill(body=later, content_type="application/json"))
    tab.sign_in(fragment=f"#/indices/{index}")
    uploads = tab.page.get_by_role("list", name="Uploads")
    expect(uploads).to_contain_text("6 documents ingested")
    expect(uploads.get_by_role("progressbar")).to_have_js_property("value", 8)
    polls = sent_to(tab, "/uploads/upl_1")
    tab.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    tab.page.wait_for_timeout(2500)
    assert polls == []
    tab.page.evaluate("delete document.hidden")
    with tab.page.expect_request("**/uploads/upl_1"):
        tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    tab.view("Usage")
    expect(tab.page.get_by_role("heading", name="Usage")).to_be_visible()
    seen = len(polls)
    tab.page.wait_for_timeout(2500)
    assert len(polls) == seen


def test_files_can_be_dropped(tab: Tab, index: str) -> None:
    tab.sign_in(fragment=f"#/indices/{index}")
    expect(tab.page.locator("main")).to_contain_text("There is no index of this name yet")
    make = "const data = new DataTransfer(); data.items.add(new File(['Bees live in hives.'], 'bees.txt')); return data;"
    dropped = tab.page.evaluate_handle(f"() => {{ {make} }}")
    tab.page.get_by_role("heading", name=index).dispatch_event("drop", {"dataTransfer": dropped})
    expect(tab.page.get_by_role("list", name="Uploads")).to_contain_text("bees.txt")
    expect(tab.page.get_by_role("list", name="Documents")).to_contain_text("Bees live in hives.", timeout=60_000)


def test_a_tenant_without_indices_is_told_how_to_begin(tab: Tab) -> None:
    empty = json.dumps({"indices": [], "next_cursor": None})
    tab.page.route("**/a1/rag/indices?*", lambda route: route.fulfill(body=empty, content_type="application/json"))
    tab.sign_in(fragment="#/indices")
    expect(tab.page.locator("main")).to_contain_text("There are no indices yet.")


def test_a_token_that_may_not_upload_is_told_so(tab: Tab, index: str) -> None:
    refusal = {"code": "model_not_allowed", "message": "This token may not use all-minilm-l6-v2.", "details": {}}
    body = json.dumps({"error": refusal, "request_id": "req_1"})

    def refuse(route: Route) -> None:
        if route.request.method == "POST":
            route.fulfill(status=403, body=body, content_type="application/json")
        else:
            route.continue_()

    tab.page.route("**/uploads*", refuse)
    tab.sign_in(fragment=f"#/indices/{index}")
    add(tab, file("guide.md", GUIDE))
    expect(tab.page.get_by_role("alert")).to_contain_text("This token may not use all-minilm-l6-v2.")
    expect(tab.page.get_by_role("button", name="Send guide.md again")).to_be_visible()


def test_a_name_that_no_index_can_have_is_refused(tab: Tab) -> None:
    tab.sign_in(fragment="#/indices/%2Fetc")
    expect(tab.page.get_by_role("alert")).to_contain_text("An index cannot have the name “/etc”")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_views_have_no_serious_finding(tab: Tab, standin: Gateway, index: str, width: int) -> None:
    append(standin, index, {"one": "A text.", "two": "Another text. " * 100})
    tab.page.set_viewport_size({"width": width, "height": 800})
    tab.sign_in(fragment="#/indices")
    expect(tab.page.get_by_role("link", name=index)).to_be_visible()
    assert findings(tab) == []
    tab.page.get_by_role("link", name=index).click()
    add(tab, file("animals.csv", ANIMALS), file("photo.png", b"x"))
    expect(tab.page.get_by_role("list", name="Uploads")).to_contain_text("csv_bad_row", timeout=60_000)
    tab.page.get_by_label("Search for").fill("text")
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("list", name="Results")).to_be_visible()
    assert findings(tab) == []
