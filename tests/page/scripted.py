"""A tab whose page reads scripted answers: the files of the page come from a gateway, and the answers from the test."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route, expect

Event: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Callable[[Route], None]
SESSION: Final = "ses_00000000000000000000000001"
AGENT: Final = {"name": "helper", "description": "Helps.", "workspace": "default", "model": "scripted"}
_CREATED: Final = "2026-11-23T12:00:00Z"


def turn(*pieces: str, between: Sequence[Event] = ()) -> list[Event]:
    """Return the events of a turn that answers with these pieces of text. ``between`` comes before the text."""
    first = {"type": "status_update", "status": "planning", "session_id": SESSION, "message_id": "m", "attempt": 1}
    usage = {"type": "usage", "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, "cost": {"usd": "0.01"}}
    done = {"type": "done", "session_id": SESSION, "message": {"id": "msg_2"}, "finish_reason": "stop"}
    tokens = [{"type": "token", "content": piece, "step": 1} for piece in pieces]
    return [first, *between, *tokens, {"type": "status_update", "status": "complete"}, usage, done]


def frames(events: Sequence[Event | str], first: int = 1) -> bytes:
    """Return the events with ids from ``first`` on. A text is sent as it is, in place of an event's JSON."""
    lines = (event if isinstance(event, str) else json.dumps(event, ensure_ascii=False) for event in events)
    return "".join(f"id: 1-{first + place}\ndata: {line}\n\n" for place, line in enumerate(lines)).encode()


def stream(body: bytes) -> Answer:
    """Answer with an event stream of this body, which ends the connection."""
    return lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body)


def refusal(status: int, code: str, **headers: str) -> Answer:
    """Answer with an error of the envelope."""
    body = {"error": {"code": code, "message": f"Refused with {code}.", "details": {}}, "request_id": "req_1"}
    return lambda route: route.fulfill(
        status=status,
        content_type="application/json",
        body=json.dumps(body),
        headers={name.replace("_", "-"): headers[name] for name in headers},
    )


def html(status: int = 200) -> Answer:
    """Answer with the page of a proxy."""
    return lambda route: route.fulfill(status=status, content_type="text/html", body="<h1>Please sign in to the Wi-Fi</h1>")


def no_answer(route: Route) -> None:
    route.abort("connectionfailed")


def no_content(route: Route) -> None:
    route.fulfill(status=204)


@dataclass
class Script:
    """Answers the requests of a page. ``chats`` are the answers to ``/c1``, one request after another; the last one is repeated.

    Once a stream has been answered to its end, the history holds ``recorded``.
    """

    page: Page
    chats: Sequence[Answer] = ()
    recorded: str | None = None
    title: str = "A session"
    rich: Sequence[Event] = ()
    calls: Sequence[Mapping[str, Any]] = ()
    asked: list[str] = field(default_factory=list)
    posts: list[Mapping[str, Any]] = field(default_factory=list)
    last_event_ids: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.route("**/a1/**", self._list)
        self.page.route("**/c1/**", self._chat)

    @property
    def requests(self) -> int:
        return len(self.asked)

    def ask(self, text: str = "Hello?") -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.get_by_role("button", name="Send").click()

    def _chat(self, route: Route) -> None:
        request = route.request
        place = min(len(self.asked), len(self.chats) - 1)
        self.asked.append(request.method)
        if request.method == "POST":
            self.posts.append(json.loads(request.post_data or "null"))
        else:
            self.last_event_ids.append(request.headers.get("last-event-id"))
        self.chats[place](route)

    def _list(self, route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path.endswith("/a1/agents"):
            body: object = {"agents": [AGENT]}
        elif path.endswith("/a1/agents/helper"):
            body = AGENT
        elif path.endswith("/messages"):
            body = {"messages": self._messages(), "next_cursor": None}
        elif path.endswith("/sessions") and route.request.method == "GET":
            body = {"sessions": [self._session()], "next_cursor": None}
        elif "/sessions" in path:
            body = self._session()
        elif "/approvals" in path:
            body = {"approvals": [], "next_cursor": None}
        else:
            body = {}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(body))

    def _session(self) -> Mapping[str, Any]:
        times = {"created_at": _CREATED, "updated_at": _CREATED, "archived_at": None}
        links = {"active_turn": None, "parent_session_id": None, "successor_session_id": None, "workspace": None}
        return {"id": SESSION, "agent": "helper", "title": self.title, **times, **links}

    def _messages(self) -> list[Mapping[str, Any]]:
        if self.recorded is None or not self.posts:
            return []
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        common: dict[str, Any] = {
            "created_at": _CREATED,
            "compacted_at": None,
            "tool_call_id": None,
            "tool_calls": [],
            "usage": None,
            "cost_usd": None,
        }
        question = {**common, "id": "msg_1", "role": "user", "content": self.posts[0]["messages"][-1]["content"]}
        answer = {**common, "id": "msg_2", "role": "assistant", "content": self.recorded, "usage": usage, "cost_usd": "0.01"}
        return [question, *self._calls(common), answer]

    def _calls(self, common: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        if not self.calls:
            return []
        named = [
            {"id": call["id"], "function": {"name": call["tool"], "arguments": json.dumps(call["args"])}} for call in self.calls
        ]
        results = [
            {
                **common,
                "id": f"tool_{call['id']}",
                "role": "tool",
                "tool_call_id": call["id"],
                "content": json.dumps(call["result"]),
                "rich": call["rich"],
            }
            for call in self.calls
        ]
        return [{**common, "id": "msg_c", "role": "assistant", "content": "", "tool_calls": named}, *results]


def answer_is(page: Page, text: str) -> None:
    """Wait until the page shows one turn, with this answer, and is ready for the next message."""
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator(".turn .step.last .markdown")).to_have_text(text, timeout=20_000)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
