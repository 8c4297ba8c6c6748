"""Uploads that are refused, lost, cancelled, dropped, and followed until they are over."""

import json
import re

from playwright.sync_api import Route, expect

from spass.rag.index.documents import MAX_UPLOAD_BYTES
from tests.e2e.conftest import Gateway
from tests.e2e.upload_client import has_ended, upload
from tests.page.exposed import with_modules
from tests.page.filling import GUIDE, add, append, bucket_of, file, sent_to
from tests.page.tab import Tab


def test_files_that_break_a_rule_are_named_and_not_sent(sender: Tab, index: str) -> None:
    sender.sign_in(fragment=f"#/indices/{index}")
    expect(sender.page.locator("main")).to_contain_text("There is no index of this name yet")
    requests = sent_to(sender, "uploads")
    before = len(requests)
    add(sender, file("photo.png", b"x"), file("nothing.md", b""), file("noending", b"x"))
    refused = sender.page.get_by_role("alert")
    expect(refused).to_contain_text("photo.png: Its name must end in .jsonl, .csv, .txt, .md.")
    expect(refused).to_contain_text("nothing.md: It is empty.")
    expect(refused).to_contain_text("noending: Its name must end in")
    assert len(requests) == before


def test_the_limit_of_a_file_is_that_of_the_gateway(sender: Tab) -> None:
    with_modules(sender).sign_in(fragment="#/indices")
    rule = "async (size) => (await load('upload.js')).brokenRule({name: 'Guide.MD', size})"
    assert sender.page.evaluate(rule, MAX_UPLOAD_BYTES) is None
    assert "at most" in sender.page.evaluate(rule, MAX_UPLOAD_BYTES + 1)


def test_a_file_that_the_bucket_refused_is_sent_with_a_new_form(sender: Tab, standin: Gateway, index: str) -> None:
    refusals: list[str] = []

    def refuse_once(route: Route) -> None:
        if refusals:
            route.continue_()
            return
        refusals.append(route.request.post_data or "")
        expired = "<Error><Code>AccessDenied</Code><Message>Invalid according to Policy: Policy expired.</Message></Error>"
        route.fulfill(status=401, body=expired, headers={"Access-Control-Allow-Origin": "*", "Content-Type": "text/xml"})

    sender.page.route(f"{bucket_of(standin)}/**", refuse_once)
    sender.sign_in(fragment=f"#/indices/{index}")
    add(sender, file("guide.md", GUIDE))
    expect(sender.page.get_by_role("alert")).to_contain_text("Policy expired")
    forms = sent_to(sender, "/uploads")
    sender.page.get_by_role("button", name="Send guide.md again").click()
    uploads = sender.page.get_by_role("list", name="Uploads")
    expect(uploads).to_contain_text("succeeded", timeout=60_000)
    assert [request.method for request in forms].count("POST") == 1
    assert re.findall(r'; name="([^"]*)"', refusals[0])[-1] == "file"


def test_a_lost_connection_keeps_the_file_and_its_form(sender: Tab, standin: Gateway, index: str) -> None:
    sender.page.route(f"{bucket_of(standin)}/**", lambda route: route.abort("connectionreset"))
    sender.sign_in(fragment=f"#/indices/{index}")
    add(sender, file("guide.md", GUIDE))
    expect(sender.page.get_by_role("alert")).to_contain_text("broke off")
    sender.page.unroute(f"{bucket_of(standin)}/**")
    sender.page.get_by_role("button", name="Send guide.md again").click()
    expect(sender.page.get_by_role("list", name="Uploads")).to_contain_text("succeeded", timeout=60_000)
    with standin.client() as client:
        uploads = client.get(f"/a1/rag/indices/{index}/uploads").json()["uploads"]
    assert [upload["status"] for upload in uploads] == ["succeeded"]


def test_a_file_whose_arrival_was_not_heard_is_not_sent_twice(sender: Tab, standin: Gateway, index: str) -> None:
    def deliver_and_break_off(route: Route) -> None:
        route.fetch()
        route.abort("connectionreset")

    sender.page.route(f"{bucket_of(standin)}/**", deliver_and_break_off)
    sender.sign_in(fragment=f"#/indices/{index}")
    posts = sent_to(sender, bucket_of(standin))
    add(sender, file("guide.md", GUIDE))
    expect(sender.page.get_by_role("alert")).to_contain_text("broke off")
    with standin.client() as client:
        sent = client.get(f"/a1/rag/indices/{index}/uploads").json()["uploads"][0]["id"]
        assert upload(client, index, sent, has_ended)["status"] == "succeeded"
    sender.page.get_by_role("button", name="Send guide.md again").click()
    expect(sender.page.get_by_role("list", name="Uploads")).to_contain_text("succeeded")
    assert len(posts) == 1


def test_files_are_sent_one_after_another_and_can_be_cancelled(sender: Tab, standin: Gateway, index: str) -> None:
    held: list[Route] = []
    sender.page.route(f"{bucket_of(standin)}/**", lambda route: held.append(route))
    sender.sign_in(fragment=f"#/indices/{index}")
    with sender.page.expect_request(f"{bucket_of(standin)}/**"):
        add(sender, file("first.md", GUIDE), file("second.md", GUIDE))
    files = sender.page.get_by_role("list", name="Files to send").get_by_role("listitem")
    expect(files.nth(0)).to_contain_text("is sent")
    expect(files.nth(1)).to_contain_text("waits for its turn")
    sender.page.get_by_role("button", name="Cancel second.md").click()
    sender.page.get_by_role("button", name="Cancel first.md").focus()
    sender.page.keyboard.press("Enter")
    expect(files.nth(0)).to_contain_text("cancelled")
    expect(sender.page.get_by_role("button", name="Send first.md again")).to_be_focused()
    expect(files.nth(1)).to_contain_text("cancelled")
    sender.page.get_by_role("button", name="Remove second.md").click()
    expect(files).to_have_count(1)
    sender.page.unroute(f"{bucket_of(standin)}/**")
    sender.page.get_by_role("button", name="Send first.md again").click()
    expect(sender.page.get_by_role("list", name="Uploads")).to_contain_text("succeeded", timeout=60_000)
    assert len(held) == 1


def test_signing_out_stops_a_file_that_is_being_sent(sender: Tab, standin: Gateway, index: str) -> None:
    sender.page.route(f"{bucket_of(standin)}/**", lambda _: None)
    sender.sign_in(fragment=f"#/indices/{index}")
    with sender.page.expect_request(f"{bucket_of(standin)}/**"):
        add(sender, file("guide.md", GUIDE))
    with sender.page.expect_event("requestfailed", lambda request: bucket_of(standin) in request.url):
        sender.page.get_by_role("button", name="Sign out").click()


def test_a_file_of_bad_lines_ends_with_the_first_errors(sender: Tab, index: str) -> None:
    sender.sign_in(fragment=f"#/indices/{index}")
    add(sender, file("bad.jsonl", b"not a document\n" * 10_000))
    bad = sender.page.get_by_role("list", name="Uploads").locator("> li")
    expect(bad).to_contain_text("0 documents ingested, 10,000 failed", timeout=60_000)
    expect(bad.locator(".badge")).to_have_text("failed")
    expect(bad).to_contain_text("The gateway keeps the first 100 of 10,000 errors.")
    bad.get_by_text("95 more errors").click()
    expect(bad).to_contain_text("Line 100:")


def test_ten_thousand_errors_are_shown_in_steps(sender: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {"one": "A text."})
    errors = [{"line": line, "code": "csv_bad_row", "message": "A row with too many cells."} for line in range(1, 10_001)]
    state = {"id": "upl_1", "filename": "big.csv", "status": "succeeded", "bytes_done": 9, "bytes_total": 9}
    state |= {"documents_ingested": 0, "documents_failed": 20_000, "errors": errors}
    answer = json.dumps({"uploads": [state], "next_cursor": None})
    sender.page.route("**/uploads?*", lambda route: route.fulfill(body=answer, content_type="application/json"))
    sender.sign_in(fragment=f"#/indices/{index}")
    uploads = sender.page.get_by_role("list", name="Uploads")
    expect(uploads).to_contain_text("The gateway keeps the first 10,000 of 20,000 errors.")
    lines = uploads.get_by_text(re.compile("^Line"))
    expect(lines).to_have_count(5)
    uploads.get_by_text("9,995 more errors").click()
    expect(lines).to_have_count(205)
    uploads.get_by_role("button", name="Show 200 more").click()
    expect(lines).to_have_count(405)


def test_an_upload_is_polled_until_the_view_closes(sender: Tab, standin: Gateway, index: str) -> None:
    append(standin, index, {"one": "A text."})
    state = {"id": "upl_1", "filename": "big.csv", "status": "running", "bytes_done": 4, "bytes_total": 9}
    state |= {"documents_ingested": 3, "documents_failed": 0, "errors": []}
    pages = json.dumps({"uploads": [state], "next_cursor": None})
    sender.page.route("**/uploads?*", lambda route: route.fulfill(body=pages, content_type="application/json"))
    later = json.dumps(state | {"bytes_done": 8, "documents_ingested": 6})
    sender.page.route("**/uploads/upl_1", lambda route: route.fulfill(body=later, content_type="application/json"))
    sender.sign_in(fragment=f"#/indices/{index}")
    uploads = sender.page.get_by_role("list", name="Uploads")
    expect(uploads).to_contain_text("6 documents ingested")
    expect(uploads.get_by_role("progressbar")).to_have_js_property("value", 8)
    polls = sent_to(sender, "/uploads/upl_1")
    sender.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    sender.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    sender.page.wait_for_timeout(2500)
    assert polls == []
    sender.page.evaluate("delete document.hidden")
    with sender.page.expect_request("**/uploads/upl_1"):
        sender.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    sender.view("Usage")
    expect(sender.page.get_by_role("heading", name="Usage")).to_be_visible()
    seen = len(polls)
    sender.page.wait_for_timeout(2500)
    assert len(polls) == seen


def test_files_can_be_dropped(sender: Tab, index: str) -> None:
    sender.sign_in(fragment=f"#/indices/{index}")
    expect(sender.page.locator("main")).to_contain_text("There is no index of this name yet")
    make = "const data = new DataTransfer(); data.items.add(new File(['Bees live in hives.'], 'bees.txt')); return data;"
    dropped = sender.page.evaluate_handle(f"() => {{ {make} }}")
    sender.page.get_by_role("heading", name=index).dispatch_event("drop", {"dataTransfer": dropped})
    expect(sender.page.get_by_role("list", name="Uploads")).to_contain_text("bees.txt")
    expect(sender.page.get_by_role("list", name="Documents")).to_contain_text("Bees live in hives.", timeout=60_000)


def test_a_token_that_may_not_upload_is_told_so(sender: Tab, index: str) -> None:
    refusal = {"code": "model_not_allowed", "message": "This token may not use all-minilm-l6-v2.", "details": {}}
    body = json.dumps({"error": refusal, "request_id": "req_1"})

    def refuse(route: Route) -> None:
        if route.request.method == "POST":
            route.fulfill(status=403, body=body, content_type="application/json")
        else:
            route.continue_()

    sender.page.route("**/uploads*", refuse)
    sender.sign_in(fragment=f"#/indices/{index}")
    add(sender, file("guide.md", GUIDE))
    expect(sender.page.get_by_role("alert")).to_contain_text("This token may not use all-minilm-l6-v2.")
    expect(sender.page.get_by_role("button", name="Send guide.md again")).to_be_visible()
