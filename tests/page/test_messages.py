"""What the page says when something is wrong: one box, in words for people."""

import json
import re
from typing import Final

import pytest
from playwright.sync_api import Route, expect

from tests.page.accessibility import grave_findings
from tests.page.chatting import ask, message_box
from tests.page.exposed import with_modules
from tests.page.scripted import no_answer
from tests.page.tab import Tab
from tests.page.writer import TOKEN, Writer

FOR_PROGRAMS: Final = {
    "session_busy": (
        409,
        "Session ses_1 is in use; repeat POST /c1/agents/poet/chat with SPASS-User-Id.",
        "Another message of this session",
    ),
    "invalid_request": (400, "body.message_id: must match ^[a-z]+$ (HTTP header Idempotency-Key).", "The gateway refused this."),
    "model_not_allowed": (
        403,
        "The token's allowed_models lack 'dear'; see GET /v1/models.",
        "This token may not use the agent's model.",
    ),
    "user_id_not_allowed": (400, "SPASS-User-Id 'x' is not in the token's list.", "This token may not act for this user."),
    "upstream_error": (502, "POST https://provider/v1/messages answered 500.", "The model's provider failed."),
    "a_new_code": (500, "The field retry_after of /a1/agents is wrong.", "The gateway failed."),
}
"""Statuses, messages of the gateway and what the page says in their place."""
WORDS: Final = re.compile(r"\b(?:GET|POST|SPASS-\S+|HTTP|Idempotency-Key)\b|/[ac]1/|[a-z]+_[a-z]+")
PROBLEM: Final = """
async ([code, message]) => {
  const { ApiError, problem } = await load("errors.js");
  return problem(new ApiError(429, code, message));
}
"""
VIEWS: Final = ("chat", "approvals", "workspaces", "indices", "usage")


@pytest.mark.parametrize("code", FOR_PROGRAMS)
def test_a_refusal_is_told_in_words_for_people_and_its_details_on_demand(tab: Tab, writer: Writer, code: str) -> None:
    status, message, title = FOR_PROGRAMS[code]
    body = json.dumps({"error": {"code": code, "message": message, "details": {}}, "request_id": "req_1"})

    def refuse(route: Route) -> None:
        route.fulfill(status=status, body=body, content_type="application/json")

    tab.url = writer.url
    tab.expects_failed_requests = True
    tab.sign_in(TOKEN, "addressee", "#/chat/poet")
    tab.page.route("**/c1/agents/poet/chat*", refuse)
    ask(tab, "Please")
    alert = tab.page.get_by_role("alert")
    expect(alert).to_have_count(1)
    expect(alert).to_contain_text(title)
    assert WORDS.findall(alert.inner_text()) == []
    expect(message_box(tab)).to_have_value("Please")
    alert.get_by_text("Details").click()
    expect(alert.get_by_text(message)).to_be_visible()
    assert grave_findings(tab.page) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("budget_exceeded", "This call may cost 0.2 US dollars. A smaller request can fit: send a smaller max_tokens."),
        ("workspace_conflict", "src/my_file.py has changed since the preview, so nothing was done."),
    ],
)
def test_a_message_with_a_name_in_it_is_for_people(tab: Tab, code: str, message: str) -> None:
    with_modules(tab).open()
    shown = tab.page.evaluate(PROBLEM, [code, message])
    assert shown["title"] == message
    assert "operator" not in shown["advice"]


@pytest.mark.parametrize("view", VIEWS)
def test_a_gateway_that_does_not_answer_is_told_once(tab: Tab, view: str) -> None:
    tab.sign_in(user="lonely", fragment="#/chat/concise-de")
    expect(message_box(tab)).to_be_visible()
    tab.expects_failed_requests = True
    tab.page.route(re.compile(r"/(?:a1|c1|v1)/"), no_answer)
    tab.open(f"#/{view}")
    tab.page.reload()
    expect(tab.page.get_by_role("alert")).to_have_count(1)
    tab.page.wait_for_timeout(1_500)  # all of the view's requests have failed, some twice
    expect(tab.page.get_by_role("alert")).to_have_count(1)
    tab.page.context.set_offline(True)
    expect(tab.page.get_by_text("You are offline.")).to_be_visible()
    expect(tab.page.locator("main .state.offline")).to_have_count(0)


def test_a_session_and_an_agent_that_are_gone_are_told_once(tab: Tab, writer: Writer) -> None:
    tab.url = writer.url
    tab.expects_failed_requests = True
    tab.sign_in(TOKEN, "latecomer", "#/chat/poet/ses_00000000000000000000000000")
    alert = tab.page.get_by_role("alert")
    expect(alert.get_by_role("link", name="Begin a new session")).to_be_visible()
    expect(alert).to_have_count(1)
    tab.open("#/chat/removed")
    expect(alert).to_contain_text("The agent is gone")
    expect(alert).to_have_count(1)
