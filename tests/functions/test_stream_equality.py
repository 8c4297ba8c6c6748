"""A collected stream equals the blocking Reply, and leaves the same history, over 1,000 random turns."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from spass.agents.kinds.registry import KINDS
from tests.functions.gateway import Gateway, Reply
from tests.functions.random_turns import (
    SESSION_KINDS,
    RandomTurn,
    agent_of,
    history,
    install,
    new_session,
    numbered,
    script,
    without_threads,
)
from tests.sampling import SOAK
from tests.stream_grammar import collect_reply, comparable_reply, read_events

TURNS = 1000 if SOAK else 200


def send(gateway: Gateway, turn: RandomTurn, session: str, way: str, number: int) -> Reply:
    """Send the turn's message to ``session``: as a blocking request, as a stream of its session, or as a chat."""
    gateway.model.script = script(turn)
    if way == "chat":
        body = {"message_id": f"m-{number}", "session_id": session, "messages": [{"role": "user", "content": "Go on."}]}
        return gateway.send("POST", f"/c1/agents/{agent_of(turn.kind)}/chat", body=body)
    message = {"message": "Go on.", "stream": way == "stream"}
    return gateway.send("POST", f"/a1/agents/{agent_of(turn.kind)}/sessions/{session}/messages", body=message)


def result(reply: Reply) -> dict[str, Any]:
    """Return what a client learns from ``reply``, blocking or streamed: the Reply, or the error."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        *_, last = events = read_events(reply)
        return collect_reply(events) if last["type"] == "done" else {"error": last["error"]}
    return comparable_reply(reply.json) if reply.status == 200 else {"error": reply.json["error"]}


@pytest.mark.parametrize("kind", SESSION_KINDS)
def test_a_collected_stream_of_a_random_turn_equals_the_blocking_reply(gateway: Gateway, tmp_path: Path, kind: str) -> None:
    gateway = install(gateway, tmp_path / "kinds")
    seen: dict[str, int] = {}
    with without_threads():
        for number in range(TURNS // len(SESSION_KINDS)):
            turn = RandomTurn.of(Random(f"{kind} {number}"), kind)
            outcomes = []
            for way in ("blocking", "chat", "stream") if number % 4 == 0 else ("blocking", "chat"):
                session = new_session(gateway, turn)
                reply = send(gateway, turn, session, way, number)
                outcomes.append((numbered(result(reply)), history(gateway, kind, session)))
            blocking, *streams = outcomes
            assert streams == [blocking] * len(streams), (kind, number)
            what = blocking[0]["error"]["code"] if "error" in blocking[0] else blocking[0]["finish_reason"]
            for name in (what, *(["compaction"] if len(blocking[1]) == 2 else [])):
                seen[name] = seen.get(name, 0) + 1
    limit = {"max_turns"} if KINDS.get(kind).accepts_tools else set()
    rare = {"upstream_error", "context_length_exceeded"} | limit if SOAK else set()
    assert {"stop", "length", "content_filter", "compaction"} | rare <= seen.keys(), seen
