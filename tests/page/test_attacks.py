"""Attacks on the page itself: addresses, what the tab remembers, who decides, and who pays."""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Route, expect

from tests.page.exposed import with_modules
from tests.page.scripted import Script, answer_is, frames, refusal, stream, turn
from tests.page.tab import Tab

TEXT = "All is well. Goodbye."
WHOLE = turn(TEXT)

CARD = """
async () => {
  const [{ approvalCard }, { render }] = [await load("approval-card.js"), await load("lit-html")];
  globalThis.decided = [];
  const client = { call: (path, { json }) => (decided.push(json.decision), new Promise(() => {})) };
  const approval = { id: "a", tool: "erase", agent: "helper", status: "pending", arguments: {}, preview: {}, expires_at: null };
  const place = document.createElement("main");
  document.body.append(place);
  render(approvalCard({ client, changed() {} }, approval, () => {}), place);
  for (const button of place.querySelectorAll("button")) button.click();
  return decided;
}
"""
CLICK = """(button, detail) => {
  button.dispatchEvent(new MouseEvent("click", { detail, bubbles: true }));
  return decided;
}"""
SCROLLED = """
async () => {
  const { Log } = await load("log.js");
  const box = document.createElement("div");
  box.id = "log";
  box.style.height = "50px";
  box.style.overflow = "auto";
  const card = document.createElement("article");
  card.className = "approval pending";
  card.style.height = "500px";
  card.tabIndex = 0;
  box.append(card);
  document.body.append(box);
  const log = new Log(null, null);
  const tops = [];
  card.focus({ preventScroll: true });
  log.restoreScroll();
  tops.push(box.scrollTop);
  card.blur();
  log.restoreScroll();
  tops.push(box.scrollTop);
  return tops;
}
"""
PRETTY = """
async () => {
  const { pretty } = await load("format.js");
  return [50, 2_000, 100_000].map((depth) => pretty(JSON.parse("[".repeat(depth) + "]".repeat(depth))));
}
"""
VISIBLE = """
async (texts) => {
  const { visible } = await load("visible.js");
  return texts.map(visible);
}
"""
DIFF = """
async (text) => {
  const [{ diff }, { render }] = [await load("diff.js"), await load("lit-html")];
  const unified = `@@ -1 +1 @@\\n+${text}`;
  render(diff({ path: "a", status: "changed", added: 1, removed: 0, unified }), document.body);
}
"""
OUTSIDE = """
() => {
  const box = document.querySelector(".wide");
  return Math.max(0, box.scrollWidth - box.clientWidth);
}
"""
SHOW = """
  const [{ approvalCard }, { render }] = [await load("approval-card.js"), await load("lit-html")];
  globalThis.decided = [];
  const show = (approval, pages) => {
    const call = (path, options) => {
      if (!options) return Promise.resolve(pages[Number(new URLSearchParams(path.split("?")[1]).get("cursor")?.slice(1) ?? 0)]);
      decided.push(options.json);
      return new Promise(() => {});
    };
    const place = document.createElement("main");
    document.body.append(place);
    const waiting = { id: "a", agent: "helper", status: "pending", expires_at: null, ...approval };
    render(approvalCard({ client: { call }, changed() {}, refused: () => false }, waiting, () => {}), place);
  };
"""
READER = f"""
async ([count, isPaged]) => {{
  {SHOW}
  const lines = (start) => Array.from({{ length: count }}, (_, number) => `+line ${{number}}\\n`).join("");
  const file = (path) => ({{ kind: "diff", path, status: "added", added: count, removed: 0, truncated: false,
    unified: `--- /dev/null\\n+++ b/${{path}}\\n@@ -0,0 +1,${{count}} @@\\n${{lines()}}` }});
  const pages = [0, 1, 2].map((number) => ({{ changes: [file(`page-${{number}}.py`)], next_cursor: `c${{number + 1}}` }}));
  const why = "It removes\\u202e 'a.py'.";
  const part = {{ workspace: "site", why, file_count: 7, complete: false, omitted: 3, omitted_bytes: 2048 }};
  const preview = isPaged ? part : {{ complete: true }};
  show({{ tool: "edit", arguments: {{}}, preview, rich: [file("a.py")] }}, [...pages, {{ changes: [], next_cursor: null }}]);
}}
"""
CALL = f"""
async (text) => {{
  {SHOW}
  show({{ tool: "rag_doc_append", arguments: {{ text }}, preview: {{ text }}, rich: [] }}, []);
}}
"""
STORE = """
async () => {
  const { Store } = await load("store.js");
  const store = new Store();
  const seen = [];
  store.set("draft:helper", "x".repeat(8_000_000));
  seen.push(store.holds);
  store.set("draft:helper", "short");
  seen.push(store.holds);
  store.set("draft:helper", "x".repeat(8_000_000));
  store.clear();
  return [...seen, store.holds, sessionStorage.length];
}
"""


@pytest.mark.parametrize("view", ["constructor", "__proto__", "toString", "hasOwnProperty/x"])
def test_a_name_of_the_language_is_no_view(tab: Tab, view: str) -> None:
    tab.sign_in(fragment=f"#/{view}")
    expect(tab.page.locator("main.chat").get_by_label("Message", exact=True)).to_be_visible()
    expect(tab.page).to_have_title("Chat – Spass")


@pytest.mark.parametrize(
    "fragment",
    [
        "#/chat/helper/..%2F..%2F..%2Fworkspaces%2Fdefault%2Ffile%3Fpath=forged.json",
        "#/chat/helper/..",
        "#/chat/%2e%2e/x",
        "#/workspaces/..",
        "#/workspaces/%2e",
    ],
)
def test_a_name_in_the_address_leads_to_no_other_route(tab: Tab, fragment: str) -> None:
    tab.expects_failed_requests = True
    paths: list[str] = []
    tab.page.on("request", lambda request: paths.append(urlsplit(request.url).path))
    tab.sign_in(fragment=fragment)
    expect(tab.page.get_by_role("alert").first).to_be_visible()
    called = {path for path in paths if path.startswith(("/a1", "/c1", "/v1"))}
    expected = ("/a1/agents", "/a1/approvals")
    assert {path for path in called if path not in expected and not path.startswith("/a1/agents/helper")} == set()
    assert not [path for path in called if path.endswith("/") or "workspaces/default" in path]


def test_signing_out_forgets_what_was_announced(tab: Tab) -> None:
    script = Script(tab.page, [stream(frames(WHOLE))], TEXT)
    tab.sign_in(fragment="#/chat/helper/new")
    script.ask()
    answer_is(tab.page, TEXT)
    expect(tab.page.locator("#announcements")).to_contain_text("All is well.")
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_label("Token")).to_be_visible()
    expect(tab.page.locator("#announcements")).to_be_empty()


@pytest.mark.parametrize(
    ("draft", "sent"),
    [
        ("{broken", "{broken"),
        ("7", "{}"),
        ("null", "null"),
        ('{"text": 7, "returned": {"text": 1}}', '[null, 7, {"messageId": 1}]'),
    ],
)
def test_a_tab_that_remembers_nonsense_is_usable(tab: Tab, draft: str, sent: str) -> None:
    script = Script(tab.page, [stream(frames(WHOLE))], TEXT)
    tab.sign_in(fragment="#/chat/helper/new")
    store = "([draft, sent]) => { sessionStorage['spass:draft:helper'] = draft; sessionStorage['spass:sent:helper'] = sent; }"
    tab.page.evaluate(store, [draft, sent])
    tab.page.reload()
    expect(tab.page.get_by_label("Message", exact=True)).to_have_value("")
    script.ask()
    answer_is(tab.page, TEXT)


def test_a_stream_that_is_always_empty_is_asked_for_with_pauses(tab: Tab) -> None:
    script = Script(tab.page, [stream(b"")])
    tab.sign_in(fragment="#/chat/helper/new")
    script.ask()
    expect(tab.page.locator(".state.reconnecting")).to_be_visible()
    tab.page.wait_for_timeout(500)
    assert script.asked.count("POST") == 1
    assert script.requests <= 5


def test_a_wait_of_a_month_is_not_a_storm_of_requests(tab: Tab) -> None:
    tab.expects_failed_requests = True
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        refusal(429, "budget_exceeded", Retry_After="3000000")(route)

    tab.page.route("**/v1/usage**", refuse)
    script = Script(tab.page, [stream(frames(WHOLE[:2])), refuse])
    tab.sign_in(fragment="#/chat/helper/new")
    script.ask()
    expect(tab.page.locator(".state.reconnecting")).to_contain_text("35 days")
    tab.view("Usage").get_by_role("alert").first.wait_for()
    tab.page.wait_for_timeout(500)
    assert script.requests == 2
    assert len(asked) == 3, "one for the turn and one for each table"


def test_a_click_that_was_meant_for_something_else_decides_nothing(tab: Tab) -> None:
    with_modules(tab).open()
    assert tab.page.evaluate(CARD) == []
    approve = tab.page.get_by_role("button", name="Approve")
    expect(approve).to_be_enabled()
    assert approve.evaluate(CLICK, 2) == []
    assert approve.evaluate(CLICK, 1) == ["approve"]


def test_the_log_stands_still_while_the_user_decides(tab: Tab) -> None:
    with_modules(tab).open()
    held, followed = tab.page.evaluate(SCROLLED)
    assert held == 0 < followed


def test_a_call_that_names_itself_as_its_parent_is_shown(tab: Tab) -> None:
    call = {"id": "c", "parent_id": "c", "tool": "loop", "args": {}, "result": {}, "ok": True, "duration_ms": 1}
    events: list[dict[str, Any]] = [{"type": "tool_call", **call}]
    done = {**WHOLE[-1], "finish_reason": "constructor"}
    script = Script(tab.page, [stream(frames([*turn(TEXT, between=events)[:-1], done]))], TEXT, calls=[{**call, "rich": []}])
    tab.sign_in(fragment="#/chat/helper/new")
    script.ask()
    expect(tab.page.locator(".call")).to_contain_text("loop")
    expect(tab.page.get_by_role("button", name="Send")).to_be_visible()
    expect(tab.page.locator(".turn")).not_to_contain_text("native code")


def test_deeply_nested_json_does_not_fill_the_memory(tab: Tab) -> None:
    with_modules(tab).open()
    flat, deep, deepest = tab.page.evaluate(PRETTY)
    assert json.loads(flat)
    assert "\n" in flat
    assert len(deep) == 4_000
    assert len(deepest) <= 200_000


def test_text_that_is_hidden_in_tags_and_selectors_is_shown(tab: Tab) -> None:
    with_modules(tab).open()
    shown = tab.page.evaluate(VISIBLE, ["a\U000e0041", "b\ufe01\U000e0100", "c\u3164\u2800", "❤️ 1️⃣ 👩‍💻", "d\u034f"])
    assert shown[:2] == ["a⟨U+E0041⟩", "b⟨U+FE01⟩⟨U+E0100⟩"]
    assert shown[2:] == ["c⟨U+3164⟩⟨U+2800⟩", "❤️ 1️⃣ 👩‍💻", "d⟨U+034F⟩"]


def test_a_joiner_or_selector_outside_an_emoji_is_shown(tab: Tab) -> None:
    with_modules(tab).open()
    hidden = ["1\ufe0f#\ufe0e*\ufe0f", "©\u200d™\u200dx", "👩\u200dx", "a\ufff9b\ufffc"]
    shown = ["1⟨U+FE0F⟩#⟨U+FE0E⟩*⟨U+FE0F⟩", "©⟨U+200D⟩™⟨U+200D⟩x", "👩⟨U+200D⟩x", "a⟨U+FFF9⟩b⟨U+FFFC⟩"]
    whole = ["©️ #️⃣ *️⃣ 9️⃣", "👩🏽‍🚀 ❤️‍🔥 🏳️‍🌈 👨‍👩‍👧"]
    assert tab.page.evaluate(VISIBLE, [*hidden, *whole]) == [*shown, *whole]


def test_a_storage_that_was_full_is_not_full_after_it_was_emptied(tab: Tab) -> None:
    with_modules(tab).open()
    assert tab.page.evaluate(STORE) == [False, True, True, 0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"x = 1{' ' * 400}rm -rf / \u202e", "x = 1⟨400 blanks⟩rm -rf / ⟨U+202E⟩"),
        (f"x = 1{chr(9) * 50}rm -rf /", "x = 1⟨50 blanks⟩rm -rf /"),
        (f"x = 1{chr(0x3000) * 400}rm -rf /", "x = 1⟨400 blanks⟩rm -rf /"),
        ("rm -rf /\rx = 1", "rm -rf /⟨U+000D⟩x = 1"),
        ("x = 1\x0crm -rf /\x0b\x85\u2028\u2029", "x = 1⟨U+000C⟩rm -rf /⟨U+000B⟩⟨U+0085⟩⟨U+2028⟩⟨U+2029⟩"),
        ("rm -rf /\x1b[2K\x08\x7f", "rm -rf /⟨U+001B⟩[2K⟨U+0008⟩⟨U+007F⟩"),
        ("rm\u200b -rf /\u2066", "rm⟨U+200B⟩ -rf /⟨U+2066⟩"),
    ],
    ids=["blanks", "tabs", "wide blanks", "carriage return", "other line ends", "terminal", "no width"],
)
def test_nothing_of_a_line_is_hidden_beside_its_box(tab: Tab, text: str, shown: str) -> None:
    with_modules(tab).open()
    tab.page.evaluate(DIFF, text)
    code = tab.page.locator("tr.added code")
    expect(code).to_have_text(shown)
    assert tab.page.evaluate(OUTSIDE) == 0


def test_a_long_line_wraps_within_its_box(tab: Tab) -> None:
    with_modules(tab).open()
    tab.page.evaluate(DIFF, f"{'x = 1;' * 300}{'_' * 99}rm -rf /")
    expect(tab.page.locator("tr.added code")).to_contain_text("rm -rf /")
    assert tab.page.evaluate(OUTSIDE) == 0


def test_a_change_is_approved_only_after_its_last_part_was_shown(tab: Tab) -> None:
    with_modules(tab).open()
    tab.page.evaluate(READER, [1_201, False])
    approve, deny = (tab.page.get_by_role("button", name=name) for name in ("Approve", "Deny"))
    expect(deny).to_be_enabled()
    for _ in range(2):
        expect(approve).to_be_disabled()
        expect(tab.page.get_by_text("line 1200")).to_have_count(0)
        tab.page.get_by_role("button", name="Show more of the change").click()
    expect(tab.page.get_by_text("line 1200", exact=True)).to_be_visible()
    expect(approve).to_be_enabled()
    approve.click()
    assert tab.page.evaluate("decided") == [{"decision": "approve"}]


def test_a_change_that_the_preview_cuts_is_read_page_by_page(tab: Tab) -> None:
    with_modules(tab).open()
    tab.page.evaluate(READER, [2, True])
    approve, main = tab.page.get_by_role("button", name="Approve"), tab.page.locator("main").last
    expect(main).to_contain_text("This changes 7 files in the workspace site. It removes⟨U+202E⟩ 'a.py'.")
    expect(main).to_contain_text("leaves out 2.0 KB of the diffs and the names of 3 files")
    tab.page.get_by_role("button", name="Read the whole change").click()
    for number in range(3):
        expect(main).to_contain_text(f"page-{number}.py")
        expect(main).to_contain_text("line 1")
        if number < 2:
            expect(approve).to_be_disabled()
            tab.page.get_by_role("button", name="Show more of the change").click()
    expect(approve).to_be_enabled()
    approve.click()
    assert tab.page.evaluate("decided") == [{"decision": "approve", "seen": "c3"}]


def test_all_of_a_call_without_a_diff_is_shown(tab: Tab) -> None:
    with_modules(tab).open()
    tab.page.evaluate(CALL, "a" * 5_000 + " the line that matters")
    expect(tab.page.locator("pre", has_text="the line that matters")).to_have_count(2)
    expect(tab.page.get_by_role("button", name="Approve")).to_be_enabled()


def test_the_rows_of_a_diff_are_as_wide_as_their_box(tab: Tab) -> None:
    with_modules(tab).open()
    tab.page.evaluate(DIFF, "short")
    widths = "(row) => [row.getBoundingClientRect().width, row.closest('.wide').clientWidth]"
    row, box = tab.page.locator("tr.added").evaluate(widths)
    assert row >= box - 1
