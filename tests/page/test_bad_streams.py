"""Streams that are cut, out of order or not streams at all: one turn, one message id, and a message that says what to do."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Gateway
from tests.page.scripted import Answer, Event, Script, answer_is, frames, html, no_answer, no_content, refusal, stream, turn
from tests.page.tab import Tab

TEXT = "Grüße aus dem Fluß 🚀 und zurück"
WHOLE = turn(TEXT[:9], TEXT[9:20], TEXT[20:])
"""Seven events: planning, three tokens, complete, usage, done."""


def begin(tab: Tab, chats: Sequence[Answer], recorded: str | None = TEXT) -> Script:
    """Sign in to a scripted gateway and send a message."""
    tab.expects_failed_requests = True
    script = Script(tab.page, chats, recorded)
    tab.sign_in(fragment="#/chat/helper/new")
    script.ask()
    return script


def begin_next(tab: Tab, chats: Sequence[Answer], recorded: str | None = TEXT) -> Script:
    """Send a message in a new session of a tab that has signed in. Most of the time would go into loading the page each time."""
    script = Script(tab.page, chats, recorded)  # before the earlier one, so that no request reaches the gateway between them
    tab.page.evaluate("location.hash = '#/chat/helper/new'")
    expect(tab.page.locator(".turn")).to_have_count(0)
    script.ask()
    return script


@pytest.fixture
def ready(tab: Tab) -> Tab:
    """A tab that has signed in to a scripted gateway."""
    tab.expects_failed_requests = True
    Script(tab.page)
    tab.sign_in(fragment="#/chat/helper/new")
    return tab


def within(character: str, body: bytes) -> bytes:
    """Return the body up to the middle of a character."""
    return body[: body.index(character.encode()) + 1]


UNREADABLE: Final[Mapping[str, Sequence[Event | str]]] = {
    "not JSON": [*WHOLE[:2], "{broken", "", *WHOLE[2:]],
    "not an object": [*WHOLE[:2], "null", "[]", '"text"', "7", *WHOLE[2:]],
    "unknown types": [*WHOLE[:2], {"type": "sparkle", "content": "no"}, {"content": "no type"}, {"type": 7}, *WHOLE[2:]],
    "missing fields": [
        *WHOLE[:2],
        {"type": "token"},
        {"type": "token", "content": 7, "step": "x"},
        {"type": "tool_call"},
        {"type": "status_update", "tool_call": 7},
        {"type": "status_update", "tool_call_id": "unknown", "progress": None},
        {"type": "approval"},
        {"type": "usage"},
        {"type": "usage", "usage": 3, "cost": 4},
        {"type": "usage", "usage": {"total_tokens": "many"}, "cost": {"usd": {}}},
        *WHOLE[2:],
    ],
}


def test_events_that_cannot_be_read_are_skipped(ready: Tab) -> None:
    for name, events in UNREADABLE.items():
        script = begin_next(ready, [stream(frames(events))])
        answer_is(ready.page, TEXT)
        assert script.requests == 1, name
        expect(ready.page.locator(".turn")).not_to_contain_text("NaN")


BROKEN: Final[Mapping[str, tuple[Sequence[bytes], Sequence[str | None]]]] = {
    "a cut": ([frames(WHOLE[:3]), frames(WHOLE[3:], 4)], ["1-3"]),
    "a cut character": ([within("ü", frames(WHOLE)), frames(WHOLE[1:], 2)], ["1-1"]),
    "a cut character later": ([frames(WHOLE[:2]) + within("🚀", frames(WHOLE[2:], 3)), frames(WHOLE[2:], 3)], ["1-2"]),
    "a gap": ([frames(WHOLE[:2]) + frames(WHOLE[4:], 5), frames(WHOLE[2:], 3)], ["1-2"]),
    "out of order": ([frames(WHOLE[:2]) + frames(WHOLE[3:4], 4) + frames(WHOLE[2:3], 3), frames(WHOLE[2:], 3)], ["1-2"]),
    "repeated": ([frames(WHOLE[:3]) + frames(WHOLE[1:3], 2) + frames(WHOLE[3:], 4)], []),
    "from the start": ([frames(WHOLE[:2]), frames(WHOLE)], ["1-2"]),
    "empty": ([b"", frames(WHOLE)], [None]),
    "bad ids": ([frames(WHOLE[:2]) + b"id: none\ndata: {}\n\nid: 1-x\ndata: {}\n\n" + frames(WHOLE[2:], 3)], []),
}


def test_a_broken_stream_is_read_on_from_its_last_good_event(ready: Tab) -> None:
    for name, (bodies, last_ids) in BROKEN.items():
        script = begin_next(ready, [stream(body) for body in bodies])
        answer_is(ready.page, TEXT)
        assert script.last_event_ids == last_ids, name
        assert len(script.posts) == 1, name


RECEIVED: Final = "The agent goes on meanwhile."
NOT_RECEIVED: Final = "Then your message is sent again."


@pytest.mark.parametrize(
    ("chats", "notice"),
    [
        ([no_answer, no_answer, stream(frames(WHOLE))], NOT_RECEIVED),
        ([html(502), stream(frames(WHOLE))], NOT_RECEIVED),
        (
            [
                stream(frames(WHOLE[:2])),
                no_answer,
                refusal(503, "storage_unavailable", Retry_After="1"),
                stream(frames(WHOLE[2:], 3)),
            ],
            RECEIVED,
        ),
        ([stream(frames(WHOLE[:2])), html(), stream(frames(WHOLE[2:], 3))], RECEIVED),
        ([stream(frames(WHOLE[:2])), refusal(429, "rate_limited", Retry_After="1"), stream(frames(WHOLE[2:], 3))], RECEIVED),
    ],
    ids=["before the first byte", "a proxy before the first byte", "after the first byte", "a proxy", "a rate limit"],
)
def test_a_failing_connection_is_repeated_under_one_message_id(tab: Tab, chats: list[Answer], notice: str) -> None:
    script = begin(tab, chats)
    expect(tab.page.locator(".state.reconnecting")).to_contain_text(notice)
    answer_is(tab.page, TEXT)
    assert script.requests == len(chats)
    assert all(post == script.posts[0] for post in script.posts)


REFUSALS: Final[Mapping[str, tuple[Sequence[Answer], str]]] = {
    "HTML": ([html()], "a proxy or a sign-in page"),
    "agent gone": ([refusal(404, "agent_not_found")], "Choose another one"),
    "session gone": ([refusal(404, "session_not_found")], "Begin a new session"),
    "busy": ([refusal(409, "session_busy")], "Follow or stop it"),
    "too large": ([refusal(413, "payload_too_large")], "Shorten it"),
    "rate limit": ([refusal(429, "rate_limited", Retry_After="7")], "Try again in 7 seconds"),
    "no backend": ([refusal(503, "no_backend_available")], "try later"),
    "204": ([no_content], "a proxy or a sign-in page"),
    "204 later": ([stream(frames(WHOLE[:2])), no_content], "did not arrive, or its answer was not recorded"),
    "404 later": (
        [stream(frames(WHOLE[:2])), refusal(404, "stream_not_found")],
        "did not arrive, or its answer was not recorded",
    ),
}


def test_a_refused_message_returns_to_the_draft_with_advice(ready: Tab) -> None:
    for name, (chats, advice) in REFUSALS.items():
        script = begin_next(ready, chats, recorded=None)
        expect(ready.page.get_by_role("alert")).to_contain_text(advice)
        expect(ready.page.get_by_label("Message", exact=True)).to_have_value("Hello?")
        assert len({post["message_id"] for post in script.posts}) == 1, name
        script.asked.clear()  # the same answers for the second attempt
        ready.page.get_by_role("button", name="Close this notice").click()
        ready.page.get_by_role("button", name="Send").click()
        expect(ready.page.get_by_role("alert")).to_contain_text(advice)
        assert len({post["message_id"] for post in script.posts}) == 1, name


def test_a_recorded_turn_whose_stream_is_gone_is_not_offered_again(tab: Tab) -> None:
    script = begin(tab, [stream(frames(WHOLE[:2])), refusal(404, "stream_not_found")])
    answer_is(tab.page, TEXT)
    expect(tab.page.get_by_label("Message", exact=True)).to_have_value("")
    assert len(script.posts) == 1


def test_a_token_revoked_in_mid_stream_signs_out_with_a_reason(tab: Tab) -> None:
    begin(tab, [stream(frames(WHOLE[:2])), refusal(401, "invalid_token")])
    expect(tab.page.get_by_role("alert")).to_contain_text("Sign in again")
    expect(tab.page.get_by_label("Token")).to_be_visible()


def test_a_proxy_that_stays_is_named_while_the_page_reconnects(new: Callable[[str], Tab], standin: Gateway) -> None:
    tab = new(standin.url)
    begin(tab, [stream(frames(WHOLE[:2])), html()])
    expect(tab.page.locator(".state.reconnecting")).to_contain_text("a proxy or a sign-in page")


@pytest.mark.parametrize("body", [b"", frames(WHOLE[2:], 3)], ids=["nothing", "a gap"])
def test_a_stream_that_never_gets_further_is_asked_for_ever_more_slowly(tab: Tab, body: bytes) -> None:
    script = begin(tab, [stream(body)])
    expect(tab.page.locator(".state.reconnecting")).to_be_visible()
    tab.page.wait_for_timeout(1500)
    assert 2 <= script.requests <= 5


def test_a_message_whose_stream_is_refused_after_a_reload_returns_to_the_draft(tab: Tab) -> None:
    with tab.page.expect_request(re.compile("/c1/")):
        script = begin(tab, [lambda route: None, refusal(403, "model_not_allowed")], recorded=None)
    tab.page.reload()
    expect(tab.page.get_by_role("alert")).to_contain_text("may not use the agent's model")
    expect(tab.page.get_by_label("Message", exact=True)).to_have_value("Hello?")
    assert script.asked == ["POST", "GET"]
