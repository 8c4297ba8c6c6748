"""Streams of agents: each equals the blocking reply. Every failure and disconnect has the end that docs/streaming.md gives."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import pytest

from spass.agents.kinds.registry import KINDS
from spass.calls.scope import CUT_SECONDS
from spass.core.errors import storage_timeout
from spass.core.messages import FinishReason, TokenUsage
from spass.models.errors import AttemptFailed
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.invocation import PendingCall, ServiceCall
from spass.testing.faults import Fault, FaultPlan, inject
from spass.testing.model import calls, in_turn
from tests.functions.gateway import Gateway, Reply
from tests.functions.random_turns import MODEL_KINDS, RandomTurn, agent_of, install, script
from tests.sampling import SOAK
from tests.stream_grammar import answer_text, check_collected, collect_reply, of_type, parse_events, read_events

T = TypeVar("T")
KEY = {"Idempotency-Key": "key-1"}
SUM = calls(("calculator", {"expression": "6*7"}), text="I compute. ")
ANSWER = [ChatDelta("It is "), ChatDelta("42.", finish_reason=FinishReason.STOP, usage=TokenUsage(20, 3))]
ROUTES = ["chat", "messages", "ask"]
ROUTES_OF_KINDS = [
    (kind, route) for kind in MODEL_KINDS for route in ROUTES if route != "messages" or not KINDS.get(kind).remembers
]
"""Nobody creates the session of an operator."""


class Target(NamedTuple):
    """A path and the body of a request, without ``stream``."""

    path: str
    body: dict[str, Any]


def target(gateway: Gateway, route: str, agent: str = "counting") -> Target:
    """Return a request to the route: a chat with the agent, a message to a new session, or a question."""
    text = "How much is 6*7?"
    if route == "ask":
        return Target("/v1/ask", {"input": text, "agent": agent})
    if route == "chat":
        return Target(f"/a1/agents/{agent}/chat", {"message": text})
    session = gateway.send("POST", f"/a1/agents/{agent}/sessions", token="demo-admin-token").json["id"]
    return Target(f"/a1/agents/{agent}/sessions/{session}/messages", {"message": text})


def send(gateway: Gateway, to: Target, *, stream: bool = True, headers: dict[str, str] | None = None) -> Reply:
    return gateway.send("POST", to.path, body=to.body | {"stream": stream}, headers=headers)


def history(gateway: Gateway, to: Target) -> list[Any]:
    messages: list[Any] = gateway.send("GET", to.path).json["messages"]
    return messages


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_shows_the_run_as_it_happens_and_ends_with_its_cost(gateway: Gateway, route: str) -> None:
    gateway.model.script = in_turn([SUM, ANSWER])
    to = target(gateway, route)
    reply = send(gateway, to)
    events = read_events(reply)
    planning, said, executing, call, *tokens, complete, usage, done = events
    session = to.path.split("/")[-2] if route == "messages" else None
    assert planning == {
        "type": "status_update",
        "status": "planning",
        "detail": f"{done['agent']} begins to work.",
        "request_id": reply.headers["spass-request-id"],
        "session_id": session,
        **({"message_id": planning["message_id"], "attempt": 1} if route == "messages" else {}),
    }
    assert said == {"type": "token", "content": "I compute. ", "step": 1}
    assert executing["tool_call"] == {
        "id": call["id"],
        "tool": "calculator",
        "args": {"expression": "6*7"},
        "agent": None,
        "parent_id": None,
    }
    assert {name: call[name] for name in ("tool", "args", "result", "ok", "agent", "parent_id", "rich")} == {
        "tool": "calculator",
        "args": {"expression": "6*7"},
        "result": {"expression": "6*7", "result": 42},
        "ok": True,
        "agent": None,
        "parent_id": None,
        "rich": None,
    }
    assert {token["step"] for token in tokens} == {2}
    assert (answer_text(events), len(tokens) > 1) == ("It is 42.", True)
    assert executing["detail"] == f"{done['agent']} uses calculator."
    assert complete == {
        "type": "status_update",
        "status": "complete",
        "detail": f"{done['agent']} is done: 2 model calls, 1 tool call.",
    }
    assert usage == {
        "type": "usage",
        "usage": {"prompt_tokens": 30, "completion_tokens": 8, "total_tokens": 38},
        "cost_usd": 0.000046,
        "cost": {"eur": "0.000023", "usd": "0.000046", "source": "catalog", "sub_calls": 2},
    }
    assert (done["request_id"], done["session_id"], done["agent"]) == (planning["request_id"], session, "counting")
    assert set(done) == {
        "type",
        "request_id",
        "agent",
        "model",
        "session_id",
        "message",
        "turns",
        "finish_reason",
        "compaction",
        "metadata",
    } | ({"kind"} if route == "ask" else set())
    if session is not None:
        stored = history(gateway, to)[-1]
        assert done["message"] == {name: stored[name] for name in ("id", "seq", "created_at")}
    else:
        assert (done["message"]["id"], done["message"]["seq"]) == (None, None)
    assert not [name for name in reply.headers if name.startswith("spass-cost")], "the headers precede the cost"


@pytest.mark.parametrize(("kind", "route"), ROUTES_OF_KINDS)
def test_a_collected_stream_equals_the_blocking_reply(gateway: Gateway, tmp_path: Path, kind: str, route: str) -> None:
    """``test_stream_equality`` has more turns, in sessions."""
    gateway, name = install(gateway, tmp_path / "kinds"), agent_of(kind)
    succeeded = 0
    for seed in range(100 if SOAK else 10):
        turn = RandomTurn.of(Random(f"{kind} {route} {seed}"), kind)
        replies = []
        for stream in (False, True):
            for user in ({}, {"SPASS-User-Id": "ada"}):  # an operator begins anew
                assert gateway.send("DELETE", f"/v1/operators/{name}", headers=user).status == 200
            gateway.model.script = script(turn)
            replies.append(send(gateway, target(gateway, route, name), stream=stream))
        blocking, streamed = replies
        events = read_events(streamed)
        if blocking.status == 200:
            check_collected(events, blocking.json)
            succeeded += 1
        else:
            assert events[-1]["error"] == blocking.json["error"]
        assert "hidden" not in streamed.text
    assert succeeded


def test_the_history_after_a_stream_equals_the_history_after_a_blocking_turn(gateway: Gateway) -> None:
    histories = []
    for stream in (False, True):
        gateway.model.script = in_turn([SUM, ANSWER])
        to = target(gateway, "messages")
        send(gateway, to, stream=stream)
        histories.append([(message["role"], message["content"]) for message in history(gateway, to)])
    assert histories[0] == histories[1]
    assert len(histories[0]) == 4


@pytest.mark.parametrize("route", ROUTES)
def test_a_refusal_of_a_stream_is_a_status(gateway: Gateway, route: str) -> None:
    refused = send(gateway, target(gateway, route, "costly"))
    assert (refused.status, refused.code) == (403, "model_not_allowed")
    if route != "messages":
        assert send(gateway, target(gateway, route, "absent")).code == "agent_not_found"
    to = target(gateway, route)
    not_boolean = gateway.send("POST", to.path, body=to.body | {"stream": "yes"})
    assert (not_boolean.status, not_boolean.json["error"]["param"]) == (400, "stream")
    assert gateway.model.requests == []


def test_a_stream_to_a_busy_session_is_refused_by_a_status(gateway: Gateway) -> None:
    to, replies = target(gateway, "messages"), list[Reply]()

    async def send_second() -> None:
        gateway.model.before_chat = None
        replies.append(await gateway.post_async(to.path, {}, {"message": "Hi", "stream": True}))

    gateway.model.before_chat = send_second
    assert answer_text(read_events(send(gateway, to))) == "Hello there."
    assert [(reply.status, reply.code) for reply in replies] == [(409, "session_busy")]


def test_a_stream_to_an_archived_session_is_redirected_to_its_successor(gateway: Gateway) -> None:
    to = Target(f"/a1/agents/plain/sessions/{_archived_session(gateway)}/messages", {"message": "Hi"})
    redirect = send(gateway, to)
    assert redirect.status == 308
    assert redirect.headers["location"].endswith(f"/sessions/{redirect.json['successor_session_id']}/messages")
    events = read_events(send(gateway, to._replace(path=redirect.headers["location"])))
    assert of_type(events, "done")[0]["session_id"] == redirect.json["successor_session_id"]


def _archived_session(gateway: Gateway) -> str:
    """Return a session that a turn has compacted."""
    session: str = gateway.send("POST", "/a1/agents/plain/sessions", body={"compact_keep_last_n": 2}).json["id"]
    path = f"/a1/agents/plain/sessions/{session}/messages"
    for message in ("x" * 26_000, "And now?"):
        gateway.send("POST", path, body={"message": message})
    to = Target(path, {"message": "And then?"})
    events = read_events(send(gateway, to, headers=KEY))
    (done,) = of_type(events, "done")
    assert done["compaction"]["source_session_id"] == events[0]["session_id"] == session
    assert done["session_id"] == done["compaction"]["successor_session_id"] != session
    for repeated in (to, to._replace(path=path.replace(session, done["session_id"]))):
        replayed = read_events(send(gateway, repeated, headers=KEY))
        assert replayed[0].items() <= events[0].items()
        assert replayed[-1] == done, "a replay begins and ends as the first stream"
    return session


@pytest.mark.parametrize("route", ROUTES)
def test_a_model_that_fails_ends_the_stream_with_an_error(gateway: Gateway, route: str) -> None:
    gateway.model.script = in_turn([SUM, [ChatDelta("It "), AttemptFailed("down")]])
    to = target(gateway, route)
    reply = send(gateway, to)
    *_, status, error = events = read_events(reply)
    assert answer_text(events) == "It "
    assert (status["status"], status["detail"]) == ("error", error["error"]["message"])
    assert error["error"]["code"] == "upstream_error"
    assert set(error["error"]) == {"code", "message", "type", "param", "details"}
    assert error["request_id"] == reply.headers["spass-request-id"]
    gateway.model.script = [AttemptFailed("down")]
    first_call = read_events(send(gateway, to))
    assert [event["type"] for event in first_call] == ["status_update", "status_update", "error"]
    if route == "messages":
        assert history(gateway, to) == []
        gateway.model.script = "Hello there."
        assert send(gateway, to, stream=False).status == 200, "the session is free again"


@pytest.mark.parametrize("route", ROUTES)
def test_a_crash_ends_the_stream_with_an_internal_error(gateway: Gateway, route: str, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.model.script = [ChatDelta("It "), ZeroDivisionError("a secret")]
    *_, status, error = read_events(send(gateway, target(gateway, route)))
    assert (status["status"], error["error"]["code"]) == ("error", "internal_error")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (failure,) = [line for line in lines if line["level"] == "error"]
    assert failure["cause"] == "ZeroDivisionError"
    assert "a secret" not in str(lines)
    gateway.model.script = ZeroDivisionError("a secret")
    blocking = send(gateway, target(gateway, route), stream=False)
    assert (blocking.status, blocking.code) == (500, "internal_error")


@pytest.mark.parametrize("route", ROUTES)
def test_a_key_replays_the_outcome_as_it_was_asked_for(gateway: Gateway, route: str) -> None:
    for stream in (True, False):
        gateway.model.script = in_turn([SUM, ANSWER])
        gateway.model.requests.clear()
        to = target(gateway, route)
        key = {"Idempotency-Key": f"key-{stream}"}
        first = send(gateway, to, stream=stream, headers=key)
        replay = send(gateway, to, stream=stream, headers=key)
        assert replay.headers["idempotency-replayed"] == "true"
        assert len(gateway.model.requests) == 2
        other = send(gateway, to, stream=not stream, headers=key)
        assert (other.status, other.code) == (422, "idempotency_key_reused")
        if not stream:
            assert replay.json == first.json
            costs = [name for name in first.headers if name.startswith("spass-cost")]
            assert [replay.headers[name] for name in costs] == [first.headers[name] for name in costs] != []
            continue
        events, replayed = read_events(first), read_events(replay)
        assert collect_reply(replayed) == collect_reply(events)
        assert replayed[-2:] == events[-2:]
        assert of_type(replayed, "tool_call") == of_type(events, "tool_call")
        assert replayed[0] == events[0]


@pytest.mark.parametrize("route", ROUTES)
def test_a_failed_stream_is_not_stored_under_its_key(gateway: Gateway, route: str) -> None:
    to = target(gateway, route)
    gateway.model.script = [ChatDelta("It "), AttemptFailed("down")]
    assert read_events(send(gateway, to, headers=KEY))[-1]["type"] == "error"
    gateway.model.script = "Hello there."
    retried = send(gateway, to, headers=KEY)
    assert answer_text(read_events(retried)) == "Hello there."
    assert "idempotency-replayed" not in retried.headers


async def slow_answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
    yield ChatDelta("Hello ")
    await asyncio.sleep(0.2)
    yield ChatDelta("there.", finish_reason=FinishReason.STOP)


@pytest.mark.parametrize("stream", [False, True])
def test_after_a_disconnect_the_answer_of_a_turn_is_in_the_history(gateway: Gateway, stream: bool) -> None:
    to = target(gateway, "messages")
    started = asyncio.Event()

    async def answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta("Hello ")
        started.set()
        await asyncio.sleep(0.2)
        yield ChatDelta("there.", finish_reason=FinishReason.STOP)

    gateway.model.script = answer
    messages = gateway.leave(to.path, {}, to.body | {"stream": stream}, when=started)
    assert b'"done"' not in b"".join(message.get("body", b"") for message in messages)
    contents = [message["content"] for message in history(gateway, to)]
    assert contents == [to.body["message"], "Hello there."]


@pytest.mark.parametrize("route", ROUTES)
def test_after_a_disconnect_a_key_replays_the_whole_run(gateway: Gateway, route: str) -> None:
    path, body = target(gateway, route)
    gateway.model.script = slow_answer
    gateway.leave(path, KEY, body | {"stream": True})
    user = {"SPASS-User-Id": "ada"}
    replay = gateway.send("POST", path, body=body | {"stream": True}, token="demo-admin-token", headers=KEY | user)
    assert replay.headers["idempotency-replayed"] == "true"
    assert answer_text(read_events(replay)) == "Hello there."
    assert len(gateway.model.requests) == 1


@pytest.mark.parametrize("route", ["chat", "ask"])
def test_a_disconnect_ends_a_run_without_a_session_or_a_key(gateway: Gateway, route: str) -> None:
    disconnect, continued = asyncio.Event(), list[Any]()

    async def answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta("Well ")
        disconnect.set()
        await asyncio.sleep(3)
        continued.append("too late")
        yield ChatDelta("too late")

    gateway.model.script = answer
    path, body = target(gateway, route)
    gateway.leave(path, {}, body | {"stream": True}, when=disconnect)
    assert continued == []
    (record,) = gateway.records()
    assert record["status"] == "cancelled"


def test_an_error_event_contains_no_secret(gateway: Gateway) -> None:
    secret = "sk-" + "a1B2" * 12
    gateway.model.script = [ChatDelta("It "), AttemptFailed(f"The key {secret} is not valid.")]
    assert secret not in send(gateway, target(gateway, "chat")).text


def test_a_long_token_is_sent_in_pieces_of_32_kib(gateway: Gateway) -> None:
    text = "🙂ü" * 30_000
    gateway.model.script = [ChatDelta(text, finish_reason=FinishReason.STOP)]
    events = parse_events(send(gateway, target(gateway, "chat")).text)
    assert answer_text(events) == text
    assert len(of_type(events, "token")) > 1


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_may_take_840_seconds_and_a_blocking_answer_270(gateway: Gateway, route: str) -> None:
    seconds = []
    for stream in (True, False):
        send(gateway, target(gateway, route), stream=stream)
        seconds.append(gateway.model.contexts[-1].deadline.remaining())
    assert 830 < seconds[0] <= 840 + (CUT_SECONDS if route == "messages" else 0)
    assert 260 < seconds[1] <= 270


def test_a_repeated_message_follows_the_stream_of_the_first_while_it_runs(gateway: Gateway) -> None:
    to, replies = target(gateway, "messages"), list[asyncio.Task[Reply]]()
    user = {"SPASS-User-Id": "ada", "Authorization": "Bearer demo-token"}

    async def send_again() -> None:
        gateway.model.before_chat = None
        replies.append(asyncio.create_task(gateway.post_async(to.path, KEY | user, to.body | {"stream": True})))
        await asyncio.sleep(0.2)

    gateway.model.before_chat = send_again
    first = send(gateway, to, headers=KEY)
    gateway.wait(1.5)
    assert [reply.result().text for reply in replies] == [first.text]


@pytest.mark.parametrize("route", ["chat", "ask"])
def test_a_repeated_stream_is_refused_by_a_status_while_the_first_runs(gateway: Gateway, route: str) -> None:
    to, replies = target(gateway, route), list[Reply]()
    user = {"SPASS-User-Id": "ada", "Authorization": "Bearer demo-token"}

    async def send_again() -> None:
        gateway.model.before_chat = None
        replies.append(await gateway.post_async(to.path, KEY | user, to.body | {"stream": True}))

    gateway.model.before_chat = send_again
    headers = KEY if route != "ask" else KEY | {"SPASS-User-Id": "ada"}
    assert answer_text(read_events(send(gateway, to, headers=headers))) == "Hello there."
    assert [(reply.status, reply.code) for reply in replies] == [(409, "idempotency_in_progress")]


class LostCommits(FaultPlan):
    """The transactions of turns get no reply and have no effect."""

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == "TransactWriteItems" and "#SES#" in str(call.parameters):
            raise storage_timeout()
        return await super().around(call, run)


def test_a_turn_whose_commit_fails_ends_its_stream_without_done(gateway: Gateway) -> None:
    to = target(gateway, "messages")
    with inject(LostCommits()):
        events = read_events(send(gateway, to))
    assert answer_text(events) == "Hello there."
    assert events[-1]["error"]["code"] == "storage_unavailable"
    assert history(gateway, to) == []


def test_a_reader_of_a_turn_whose_commit_is_settled_late_sees_its_end(gateway: Gateway) -> None:
    """The replies to ten calls in a row are lost, although the calls take effect."""

    def chat(message_id: str) -> Reply:
        messages = [{"role": "user", "content": "Hi"}]
        return gateway.send("POST", "/c1/agents/plain/chat", body={"message_id": message_id, "messages": messages})

    chat("first")
    with inject(FaultPlan()) as plan:
        chat("second")
    ends = []
    for point in range(len(plan.calls)):
        with inject(FaultPlan(Fault.LOST_REPLY, at=point, times=10)):
            live = chat(f"m{point}")
        if live.status == 200:
            stored = gateway.send("GET", f"/c1/agents/plain/chat/m{point}")
            assert live.text == stored.text
            ends.append(read_events(live)[-1]["type"])
    assert "done" in ends


def test_a_turn_of_a_process_that_stops_fails_at_once_and_may_be_sent_again(gateway: Gateway) -> None:
    chat = {"message_id": "m1", "messages": [{"role": "user", "content": "Hi"}]}
    has_begun = asyncio.Event()

    async def hang() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async def stop() -> None:
        request = asyncio.ensure_future(gateway.post_async("/c1/agents/plain/chat", {}, chat))
        await has_begun.wait()
        work = asyncio.all_tasks() - {asyncio.current_task()}
        for task in work:
            task.cancel()
        await asyncio.wait(work)
        assert request in work

    gateway.model.before_chat = hang
    asyncio.get_event_loop().run_until_complete(stop())
    gateway.model.before_chat = None
    stopped = read_events(gateway.send("GET", "/c1/agents/plain/chat/m1", token="demo-admin-token"))
    assert stopped[-1]["error"]["code"] == "internal_error"
    again = read_events(gateway.send("POST", "/c1/agents/plain/chat", token="demo-admin-token", body=chat))
    assert (again[0]["attempt"], answer_text(again)) == (2, "Hello there.")
