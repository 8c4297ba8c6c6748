"""The agents that the page offers, and what it says of their models."""

import json
import re

from playwright.sync_api import Route, expect

from tests.page.accessibility import grave_findings
from tests.page.chatting import message_box
from tests.page.tab import Tab
from tests.page.writer import TOKEN, Writer

REASON = "This token may not use the model 'dear', which the agent needs."


def refuse_the_first(route: Route) -> None:
    """Answer as the gateway does, of three agents. The first may not be used."""
    answer = route.fetch()
    body = answer.json()
    if "agents" in body:
        body["agents"] = [agent for agent in body["agents"] if agent["name"] in ("clerk", "diary", "poet")]
    agent = body["agents"][0] if "agents" in body else body
    if agent["name"] == "clerk":
        agent.update(usable=False, unusable_reason=REASON)
    route.fulfill(response=answer, body=json.dumps(body))


def test_the_page_opens_a_usable_agent_and_offers_no_other(tab: Tab, writer: Writer) -> None:
    tab.url = writer.url
    tab.expects_failed_requests = True  # the operator exists from its first run on
    tab.page.route(re.compile(r"/a1/agents(/clerk)?$"), refuse_the_first)
    tab.sign_in(TOKEN, "barred")
    expect(tab.page).to_have_url(re.compile("#/chat/(?!clerk)|/ui$"))
    expect(tab.page.get_by_role("heading", name="diary")).to_be_visible()
    options = tab.page.get_by_label("Agent", exact=True).locator("option")
    expect(options).to_have_text(["diary", "poet", "clerk"])
    expect(options.nth(2)).to_be_disabled()
    expect(options.nth(2)).to_have_attribute("title", REASON)
    tab.open("#/chat/clerk")
    expect(tab.page.get_by_text(REASON)).to_be_visible()
    expect(message_box(tab)).to_have_count(0)
    assert grave_findings(tab.page) == []


def test_the_model_is_shown_and_whether_the_stand_in_answers(tab: Tab) -> None:
    tab.sign_in(TOKEN, "curious", "#/chat/dir-code")
    facts = tab.page.locator(".facts")
    expect(facts).to_contain_text("Model ollama/qwen2.5-coder:7b-instruct")
    expect(facts.get_by_text("stand-in")).to_be_visible()
    tab.open("#/chat/poet")
    expect(facts).to_contain_text("Model writer")
    expect(facts.get_by_text("stand-in")).to_have_count(0)
