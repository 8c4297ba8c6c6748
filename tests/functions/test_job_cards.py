"""Job cards: each is one turn of a chat, whose message the gateway renders always in the same form."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from spass.core.messages import FinishReason, Role, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import USAGE, Answer
from tests.functions.gateway import Gateway, Reply
from tests.hostile_paths import SENDABLE
from tests.stream_grammar import read_events

CARDS: Final = "/c1/agents/director/job_card"
CHAT: Final = "/c1/agents/director/chat"
SESSIONS: Final = "/a1/agents/director/sessions"
KIB: Final = 1024
CARD: Final[Mapping[str, Any]] = {
    "title": "Document main()",
    "task": "Add a docstring to main().",
    "files": ["src/main.py", "docs/guide.md"],
    "acceptance": ["The docstring is one sentence.", "Nothing else changes."],
}
MESSAGE: Final = (
    "# Job card: Document main()\n\n## Task\n\nAdd a docstring to main().\n\n## Files\n\n- src/main.py\n- docs/guide.md\n\n"
    "## Acceptance\n\n- The docstring is one sentence.\n- Nothing else changes."
)


@pytest.fixture(autouse=True)
def _director(gateway: Gateway) -> None:
    file = gateway.services.settings.agents / "director.yaml"
    file.write_text("name: director\nmodel: small\nworkspace: default\ntools: [calculator]\n")


def send(gateway: Gateway, /, **changes: object) -> Reply:
    return gateway.send("POST", CARDS, body={**CARD, **changes})


def events_of(reply: Reply) -> list[dict[str, Any]]:
    """Return the events without ids and times."""
    names = {"request_id", "session_id", "message_id", "duration_ms", "message"}
    return [{key: value for key, value in event.items() if key not in names} for event in read_events(reply)]


def test_a_card_gives_the_same_events_as_the_message_rendered_from_it(gateway: Gateway) -> None:
    gateway.model.script = calculate
    card = send(gateway)
    chat = gateway.send("POST", CHAT, body={"message_id": "m1", "messages": [{"role": "user", "content": MESSAGE}]})
    assert events_of(card) == events_of(chat)
    assert len(events_of(card)) > 5
    asked = [[message.content for message in request.messages] for request in gateway.model.requests]
    assert asked[:2] == asked[2:]
    (ours, theirs) = (gateway.send("GET", f"{SESSIONS}/{reply}/messages").json["messages"] for reply in sessions(gateway))
    assert [message["content"] for message in ours] == [message["content"] for message in theirs]
    assert ours[0]["content"] == MESSAGE


def calculate(request: ChatRequest, _: CallContext) -> Answer:
    """Call the calculator, and answer when it has."""
    if request.messages[-1].role is Role.TOOL:
        return "It is 42."
    call = ToolCallDelta(0, "call_1", "calculator", '{"expression": "6 * 7"}')
    return [ChatDelta("", (call,), FinishReason.TOOL_CALLS, USAGE)]


def sessions(gateway: Gateway) -> list[str]:
    return [session["id"] for session in gateway.send("GET", SESSIONS).json["sessions"]]


def test_a_card_without_a_message_id_gets_one_to_follow_and_stop(gateway: Gateway) -> None:
    first, second = send(gateway), send(gateway, message_id=None)
    names = [read_events(reply)[0]["message_id"] for reply in (first, second)]
    assert len({*names}) == 2
    for name, reply in zip(names, (first, second), strict=True):
        assert gateway.send("GET", f"{CHAT}/{name}").text == reply.text
        assert gateway.send("DELETE", f"{CHAT}/{name}").json == {"status": "done"}


def test_the_same_card_with_a_message_id_is_one_turn(gateway: Gateway) -> None:
    first = send(gateway, message_id="m1", session_id="board")
    assert send(gateway, message_id="m1", session_id="board").text == first.text
    assert len(gateway.model.requests) == 1
    assert send(gateway, message_id="m1", session_id="board", title="Another").code == "idempotency_key_reused"
    chat = {"message_id": "m1", "session_id": "board", "messages": [{"role": "user", "content": MESSAGE}]}
    assert gateway.send("POST", CHAT, body=chat).code == "idempotency_key_reused"


def test_cards_and_chats_share_a_session(gateway: Gateway) -> None:
    send(gateway, session_id="board", workspace="other")
    gateway.send("POST", CHAT, body={"message_id": "m2", "session_id": "board", "messages": [{"role": "user", "content": "Hi"}]})
    (session,) = gateway.send("GET", SESSIONS).json["sessions"]
    assert (session["title"], session["workspace"], session["message_count"]) == ("board", "other", 4)
    assert send(gateway, session_id="board", workspace="default").json["error"]["param"] == "workspace"


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"title": None}, "invalid_request", "title"),
        ({"title": ""}, "invalid_request", "title"),
        ({"title": " \n"}, "invalid_request", "title"),
        ({"title": "a" * 201}, "invalid_request", "title"),
        ({"title": "a\0b"}, "invalid_request", "title"),
        ({"task": None}, "invalid_request", "task"),
        ({"task": ""}, "invalid_request", "task"),
        ({"task": "\u200b"}, "invalid_request", "task"),
        ({"task": "ä" * (128 * KIB + 1)}, "invalid_request", "task"),
        ({"task": "a" * (256 * KIB)}, "invalid_request", "task"),
        ({"files": "src/main.py"}, "invalid_request", "files"),
        ({"files": ["a.py"] * 101}, "invalid_request", "files"),
        ({"files": [1]}, "invalid_request", "files.0"),
        ({"files": ["../a.py"]}, "invalid_path", "files.0"),
        ({"files": ["a.py", "/etc/passwd"]}, "invalid_path", "files.1"),
        ({"files": [""]}, "invalid_path", "files.0"),
        ({"files": ["a/.git/config"]}, "invalid_path", "files.0"),
        ({"files": ["a\n## Task\n\nb"]}, "invalid_path", "files.0"),
        ({"acceptance": ["a"] * 51}, "invalid_request", "acceptance"),
        ({"acceptance": "a\n" * 51}, "invalid_request", "acceptance"),
        ({"acceptance": ["a\nb"] * 26}, "invalid_request", "acceptance"),
        ({"acceptance": 5}, "invalid_request", "acceptance"),
        ({"acceptance": [{"check": "a"}]}, "invalid_request", "acceptance.0"),
        ({"acceptance": ["a\0b"]}, "invalid_request", "acceptance.0"),
        ({"message_id": ".."}, "invalid_request", "message_id"),
        ({"session_id": "a/b"}, "invalid_request", "session_id"),
        ({"workspace": "../other"}, "invalid_request", "workspace"),
        ({"model": ""}, "invalid_request", "model"),
        ({"model": "nowhere"}, "model_not_found", "model"),
        ({"messages": []}, "invalid_request", "messages"),
        ({"agent_id": "director"}, "invalid_request", "agent_id"),
    ],
)
def test_a_bad_card_is_refused_and_leaves_nothing(gateway: Gateway, changes: Mapping[str, object], code: str, param: str) -> None:
    before = dict(gateway.stored())
    refused = send(gateway, **dict(changes))
    assert (refused.code, refused.json["error"]["param"]) == (code, param)
    assert refused.status == (404 if code == "model_not_found" else 400)
    assert gateway.stored() == before
    assert gateway.model.requests == []


def test_a_hostile_path_in_a_card_is_refused(gateway: Gateway) -> None:
    before = dict(gateway.stored())
    for path in SENDABLE:
        if len(path) < 10_000:
            refused = send(gateway, files=["src/main.py", path])
            assert (refused.status, refused.code, refused.json["error"]["param"]) == (400, "invalid_path", "files.1"), path
    assert gateway.stored() == before
    assert gateway.model.requests == []


@pytest.mark.parametrize("missing", ["title", "task"])
def test_a_card_needs_a_title_and_a_task(gateway: Gateway, missing: str) -> None:
    refused = gateway.send("POST", CARDS, body={key: value for key, value in CARD.items() if key != missing})
    assert (refused.status, refused.code, refused.json["error"]["param"]) == (400, "invalid_request", missing)


def test_an_unknown_agent_gets_no_card(gateway: Gateway) -> None:
    assert gateway.send("POST", "/c1/agents/nobody/job_card", body=dict(CARD)).code == "agent_not_found"
