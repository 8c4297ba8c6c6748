"""Workspaces: files, versions with their diffs, restore, and zips in and out."""

import zipfile
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import FilePayload, Locator, Route, expect

from tests.e2e.conftest import Gateway
from tests.functions.workspace_client import pack
from tests.page.accessibility import grave_findings
from tests.page.tab import Tab

RTL = "\u05e9\u05dc\u05d5\u05dd"  # a name that is written from right to left


def write(gateway: Gateway, workspace: str, path: str, content: bytes) -> None:
    with gateway.client() as client:
        address = f"/a1/workspaces/{workspace}/file?path={quote(path)}"
        client.put(address, content=content, headers={"Content-Type": "application/octet-stream"}).raise_for_status()


def choose(tab: Tab, content: bytes, name: str = "files.zip") -> None:
    tab.page.get_by_label("at most 4 MB").set_input_files(FilePayload(name=name, mimeType="application/zip", buffer=content))


def code(tab: Tab) -> Locator:
    return tab.page.get_by_role("region", name="Code")


def test_a_file_is_found_in_the_tree_read_and_saved(tab: Tab, standin: Gateway) -> None:
    write(standin, "reading", "src/app/main.py", b"def main():\n    pass\n")
    write(standin, "reading", f"src/{RTL}<img src=x>.html", b"<script>alert(1)</script>")
    tab.sign_in(user="reader", fragment="#/workspaces")
    tab.page.get_by_role("link", name="reading").click()
    tab.page.get_by_text("src/").click()
    tab.page.get_by_text("app/").click()
    tab.page.get_by_role("link", name="main.py").click()
    expect(code(tab)).to_contain_text("def main():")
    expect(code(tab).locator(".hljs-keyword").first).to_have_text("def")
    with tab.page.expect_download() as saving:
        tab.page.get_by_role("button", name="Download").click()
    assert saving.value.suggested_filename == "main.py"
    assert Path(saving.value.path()).read_bytes() == b"def main():\n    pass\n"
    tab.page.get_by_role("link", name=f"{RTL}<img src=x>.html").click()
    expect(code(tab)).to_contain_text("<script>alert(1)</script>")
    tab.page.reload()
    expect(code(tab)).to_contain_text("<script>alert(1)</script>")


def test_a_line_of_one_megabyte_is_shortened_and_binary_is_not_shown(tab: Tab, standin: Gateway) -> None:
    write(standin, "odd", "long.json", b"[" + b"1," * 500_000 + b"1]")
    write(standin, "odd", "image.png", b"\x89PNG\x00\xff")
    write(standin, "odd", "huge.txt", b"line\n" * 300_000)
    tab.sign_in(user="odd", fragment="#/workspaces/odd/files/long.json")
    expect(tab.page.get_by_text("Shortened.")).to_be_visible()
    tab.page.get_by_role("link", name="image.png").click()
    expect(tab.page.get_by_text("This file is not text.")).to_be_visible()
    tab.page.get_by_role("link", name="huge.txt").click()
    expect(tab.page.get_by_text("This file is larger than 1 MB.")).to_be_visible()
    with tab.page.expect_download() as saving:
        tab.page.get_by_role("button", name="Download").click()
    assert Path(saving.value.path()).stat().st_size == 1_500_000


def test_a_deleted_file_is_restored_after_a_confirmation(tab: Tab, standin: Gateway) -> None:
    write(standin, "history", "a.txt", b"one\n")
    write(standin, "history", "b.txt", b"two\n")
    with standin.client() as client:
        client.delete("/a1/workspaces/history/file?path=a.txt").raise_for_status()
    tab.sign_in(user="restorer", fragment="#/workspaces/history/versions")
    tab.page.get_by_role("link", name="Version 3").click()
    expect(tab.page.locator("figure.diff")).to_contain_text("a.txt")
    expect(tab.page.locator("figure.diff")).to_contain_text("one")
    expect(tab.page.locator("main")).to_contain_text("by ada")
    tab.page.get_by_role("checkbox").check()
    tab.page.get_by_role("button", name="Go back to version 2 (1 file)").click()
    question = tab.page.get_by_role("dialog")
    question.get_by_role("button", name="Cancel").click()
    expect(question).to_have_count(0)
    tab.page.get_by_role("button", name="Go back to version 2 (1 file)").click()
    question.get_by_role("button", name="Restore").click()
    expect(tab.page.get_by_text("Restored: 1 file added, 0 changed, 0 deleted.")).to_be_visible()
    tab.page.get_by_role("link", name="Files", exact=True).click()
    tab.page.get_by_role("link", name="a.txt").click()
    expect(code(tab)).to_contain_text("one")


def test_the_workspaces_have_no_serious_finding(tab: Tab, standin: Gateway) -> None:
    write(standin, "judged", "src/main.py", b"def main():\n    pass\n")
    write(standin, "judged", "src/main.py", b"def main():\n    return 1\n")
    tab.sign_in(user="judge", fragment="#/workspaces/judged/files/src/main.py")
    found: dict[str, list[str]] = {}
    expect(code(tab)).to_contain_text("return 1")
    found["file"] = grave_findings(tab.page)
    for view, shows in (("versions/2", "return 1"), ("versions", "newest"), ("zip", "Put files in")):
        tab.page.evaluate("view => { location.hash = `#/workspaces/judged/${view}` }", view)
        expect(tab.page.locator("main")).to_contain_text(shows)
        found[view] = grave_findings(tab.page)
    tab.page.get_by_role("link", name="All workspaces").click()
    expect(tab.page.get_by_role("link", name="judged")).to_be_visible()
    found["list"] = grave_findings(tab.page)
    assert {view: lines for view, lines in found.items() if lines} == {}


def test_a_file_of_an_old_version_is_shown_and_restored(tab: Tab, standin: Gateway) -> None:
    write(standin, "old", "a.txt", b"first\n")
    write(standin, "old", "a.txt", b"second\n")
    tab.sign_in(user="old", fragment="#/workspaces/old/at/1/a.txt")
    expect(code(tab)).to_contain_text("first")
    tab.page.get_by_role("button", name="Restore this file").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    tab.page.get_by_role("link", name="See version 3").click()
    expect(tab.page.locator("figure.diff")).to_contain_text("first")


def test_a_restore_whose_reply_is_lost_makes_one_version(tab: Tab, standin: Gateway) -> None:
    write(standin, "lossy", "a.txt", b"first\n")
    write(standin, "lossy", "a.txt", b"second\n")
    tab.expects_failed_requests = True
    tab.sign_in(user="lossy", fragment="#/workspaces/lossy/versions/1")

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    tab.page.route("**/restore", lose, times=1)
    tab.page.get_by_role("button", name="Restore this version").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    tab.page.get_by_role("button", name="Try again").click()
    tab.page.get_by_role("link", name="See version 3").wait_for()
    with standin.client() as client:
        assert client.get("/a1/workspaces/lossy").json()["version"] == 3


def test_a_zip_makes_a_workspace_and_comes_out_the_same(tab: Tab, standin: Gateway) -> None:
    files = {"README.md": "# Hello\n", f"docs/{RTL}.md": "text\n"}
    tab.expects_failed_requests = True  # the page asks whether the name is free, and 404 is the answer
    tab.sign_in(user="zipper", fragment="#/workspaces")
    tab.page.get_by_text("New workspace from a zip").click()
    tab.page.get_by_label("Name").fill("zipped")
    choose(tab, pack(files))
    tab.page.get_by_role("button", name="Create it").click()
    expect(tab.page.get_by_role("heading", name="zipped")).to_be_visible()
    tab.page.get_by_role("link", name="Zip", exact=True).click()
    choose(tab, pack({"more.txt": "more\n"}))
    tab.page.get_by_role("button", name="Send the zip").click()
    expect(tab.page.get_by_text("Version 2 is there: 1 file added, 0 changed, 0 deleted.")).to_be_visible()
    with tab.page.expect_download() as saving:
        tab.page.get_by_role("button", name="Download as zip").click()
    assert saving.value.suggested_filename == "zipped-version-2.zip"
    with zipfile.ZipFile(saving.value.path()) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files | {"more.txt": "more\n"}
    tab.page.get_by_label("Delete those that the zip does not have.").check()
    choose(tab, pack({"only.txt": "only\n"}))
    tab.page.get_by_role("button", name="Send the zip").click()
    expect(tab.page.get_by_text("1 file added, 0 changed, 3 deleted.")).to_be_visible()


def test_an_existing_workspace_is_not_overwritten_by_a_new_one(tab: Tab, standin: Gateway) -> None:
    write(standin, "taken", "a.txt", b"kept\n")
    tab.sign_in(user="taker", fragment="#/workspaces")
    tab.page.get_by_text("New workspace from a zip").click()
    tab.page.get_by_label("Name").fill("taken")
    choose(tab, pack({"b.txt": "b"}))
    tab.page.get_by_role("button", name="Create it").click()
    expect(tab.page.get_by_text("There is a workspace “taken” already.")).to_be_visible()
    with standin.client() as client:
        assert client.get("/a1/workspaces/taken").json()["version"] == 1


def test_a_zip_of_five_megabytes_is_refused_without_a_request(tab: Tab, standin: Gateway) -> None:
    write(standin, "full", "a.txt", b"a\n")
    tab.sign_in(user="large", fragment="#/workspaces/full/zip")
    sent: list[str] = []
    tab.page.on("request", lambda request: sent.append(request.method))
    choose(tab, b"PK\x03\x04" + bytes(5 * 1024 * 1024))
    expect(tab.page.get_by_text("At most 4 MB can be sent at once")).to_be_visible()
    expect(tab.page.get_by_role("button", name="Send the zip")).to_be_disabled()
    choose(tab, b"not a zip", "notes.txt")
    expect(tab.page.get_by_text("“notes.txt” is not a zip.")).to_be_visible()
    assert "PUT" not in sent


def test_a_zip_with_a_bad_entry_is_refused_by_its_name(tab: Tab, standin: Gateway) -> None:
    write(standin, "strict", "a.txt", b"a\n")
    tab.expects_failed_requests = True
    tab.sign_in(user="strict", fragment="#/workspaces/strict/zip")
    choose(tab, pack({"good.txt": "good", "../escape.txt": "bad"}))
    tab.page.get_by_role("button", name="Send the zip").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("../escape.txt")
    with standin.client() as client:
        assert client.get("/a1/workspaces/strict").json()["version"] == 1


def test_a_new_session_works_in_the_chosen_workspace(tab: Tab, standin: Gateway) -> None:
    write(standin, "chosen", "only-here.txt", b"here\n")
    tab.sign_in(user="chooser", fragment="#/chat/dir-code/new")
    field = tab.page.get_by_label("Workspace")
    expect(field.locator("option:checked")).to_have_text("default (the agent's own)")
    field.select_option("chosen")
    tab.page.reload()
    expect(field).to_have_value("chosen")
    box = tab.page.get_by_label("Message", exact=True)
    box.fill("What files are there?")
    box.press("Enter")
    expect(tab.page.get_by_label("Call of list_directory")).to_contain_text("only-here.txt")
    expect(tab.page.get_by_role("link", name="chosen")).to_be_visible()
    expect(field).to_have_count(0)


def test_what_was_opened_in_one_version_is_not_shown_for_another(tab: Tab, standin: Gateway) -> None:
    for text in ("one", "two"):
        archive = pack({f"{text}-{number:02}.txt": text for number in range(45)})
        with standin.client() as client:
            headers = {"Content-Type": "application/zip"}
            client.put("/a1/workspaces/many/archive?mode=merge", content=archive, headers=headers).raise_for_status()
    tab.sign_in(user="opener", fragment="#/workspaces/many/versions/1")
    tab.page.get_by_text("25 more files").click()
    tab.page.get_by_text("5 more files", exact=True).click()
    expect(tab.page.get_by_text("one-44.txt").first).to_be_visible()
    tab.page.goto(f"{tab.url}/ui#/workspaces/many/versions/2")
    tab.page.get_by_text("25 more files").click()
    expect(tab.page.get_by_text("two-30.txt").first).to_be_visible()
    expect(tab.page.get_by_text("one-30.txt")).to_have_count(0)
