"""Pages of lists: each fits into an answer of Lambda, and forged cursors are refused."""

from urllib.parse import quote

import pytest

from spass.core.paging import encode_cursor
from tests.functions.gateway import Gateway

QUOTES = '{"k":"v","a":"b"}\n' * 13_500


def test_default_pages_of_a_history_of_json_fit_into_an_answer(gateway: Gateway) -> None:
    session = gateway.send("POST", "/a1/agents/plain/sessions", body={"compact_strategy": "manual"}).json["id"]
    messages = f"/a1/agents/plain/sessions/{session}/messages"
    for _ in range(18):
        assert gateway.send("POST", messages, body={"message": QUOTES}).status == 200
    numbers, cursor, pages = [], "", 0
    while cursor is not None:
        page = gateway.send("GET", f"{messages}?cursor={cursor}")
        assert page.status == 200, page.text[:500]
        numbers += [message["seq"] for message in page.json["messages"]]
        cursor, pages = page.json["next_cursor"], pages + 1
    assert numbers == list(range(1, 37))
    assert pages > 1


POSITIONS = ["", "x", "1:x", "1:2:3", "x" * 1025, "x" * 3000, "[" * 3000, "\0", "ü", "..", "#", "a/b", "9" * 40]


@pytest.mark.parametrize("position", POSITIONS)
def test_a_forged_cursor_is_refused_or_stays_in_the_callers_list(gateway: Gateway, position: str) -> None:
    session = gateway.send("POST", "/a1/agents/plain/sessions").json["id"]
    gateway.send("POST", f"/a1/agents/plain/sessions/{session}/messages", body={"message": "Hi"})
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "a"}]})
    lists = {
        "/a1/agents/plain/sessions": "sessions|demo|ada|plain",
        f"/a1/agents/plain/sessions/{session}/messages": f"messages|demo|ada|{session}",
        "/a1/rag/indices": "indices:demo",
        "/a1/rag/indices/notes/documents": "documents:demo:notes",
        "/a1/rag/indices/notes/uploads": "uploads:demo:notes",
    }
    for path, scope in lists.items():
        reply = gateway.send("GET", f"{path}?cursor={quote(encode_cursor(scope, position))}")
        by_id = position in {"x", "1:x", "1:2:3", "9" * 40} and path.startswith("/a1/rag/")
        if by_id:
            assert reply.status == 200, (path, reply.text)
        else:
            assert (reply.status, reply.code) == (400, "invalid_request"), (path, reply.text)
