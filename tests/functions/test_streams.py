"""The routes under /c1, as API Gateway and the web adapter call them: refusals, streams to follow, stops."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import pytest

from spass.models.errors import AttemptFailed
from spass.models.types import CallContext, ChatDelta, ChatRequest
from tests.functions.gateway import STAGE, Gateway, Reply, find_route
from tests.stream_grammar import answer_text, read_events, receive

PATH: Final = "/c1/agents/plain/chat"
USER: Final = {"role": "user", "content": "Hi"}
KIB: Final = 1024


def body(message_id: str = "m1", **changes: object) -> dict[str, Any]:
    return {"message_id": message_id, "messages": [USER], **changes}


def chat(gateway: Gateway, message_id: str = "m1", /, **changes: object) -> Reply:
    return gateway.send("POST", PATH, body=body(message_id, **changes))


def follow(gateway: Gateway, message_id: str = "m1", last: str | None = None, method: str = "GET") -> Reply:
    headers = {} if last is None else {"Last-Event-ID": last}
    return gateway.send(method, f"{PATH}/{message_id}", headers=headers)


def stop(gateway: Gateway, message_id: str = "m1") -> Reply:
    return gateway.send("DELETE", f"{PATH}/{message_id}")


def adapter_headers(method: str, path: str) -> dict[str, str]:
    """Return the headers that the web adapter adds to a request behind a stage."""
    route = find_route(method, path)
    assert route is not None
    context = {"path": f"/{STAGE}{path}", "resourcePath": route.resource, "stage": STAGE, "requestId": "apigw-1"}
    return {"x-amzn-request-context": json.dumps(context), "x-amzn-lambda-context": "{}"}


def test_a_turn_is_streamed_and_followed_behind_a_stage(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [follow(gateway).code, gateway.send("POST", PATH, body={}).code] == ["stream_not_found", "invalid_request"]
    capsys.readouterr()
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "streams")  # the functions read the headers of the web adapter
    sent = gateway.send("POST", PATH, body=body(), headers=adapter_headers("POST", PATH))
    events = read_events(sent)
    assert answer_text(events) == "Hello there."
    assert (events[0]["message_id"], events[0]["attempt"]) == ("m1", 1)
    assert events[0]["request_id"] == sent.headers["spass-request-id"]
    followed = gateway.send("GET", f"{PATH}/m1", headers=adapter_headers("GET", f"{PATH}/m1"))
    assert followed.text == sent.text
    assert chat(gateway).text == sent.text, "the same POST replays the stream"
    assert len(gateway.model.requests) == 1
    stopped = stop(gateway)
    assert (stopped.status, stopped.json) == (200, {"status": "done"})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    logged = [line for line in lines if "method" in line]
    path = "/c1/agents/{name}/chat"
    assert [(line["method"], line["route"], line["status"], line.get("gateway_request_id")) for line in logged] == [
        ("POST", path, 200, "apigw-1"),
        ("GET", f"{path}/{{message_id}}", 200, "apigw-1"),
        ("POST", path, 200, None),
        ("DELETE", f"{path}/{{message_id}}", 200, "apigw"),
    ]
    assert {(line["tenant"], line["level"], line["error"]) for line in logged} == {("demo", "info", None)}
    assert "Hello there." not in str(lines)


TOO_LONG: Final = "a" * 129


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"message_id": None}, "message_id"),
        ({"message_id": ""}, "message_id"),
        ({"message_id": TOO_LONG}, "message_id"),
        ({"message_id": "a/b"}, "message_id"),
        ({"message_id": "a b"}, "message_id"),
        ({"message_id": "a\n"}, "message_id"),
        ({"message_id": "ä"}, "message_id"),
        ({"message_id": "."}, "message_id"),
        ({"message_id": ".."}, "message_id"),
        ({"message_id": 1}, "message_id"),
        ({"messages": None}, "messages"),
        ({"messages": []}, None),
        ({"messages": [USER] * 1001}, "messages"),
        ({"messages": USER}, "messages"),
        ({"messages": [USER, {"role": "assistant", "content": "Hi"}]}, None),
        ({"messages": [USER, {"role": "tool", "content": "42", "tool_call_id": "c1"}]}, None),
        ({"messages": [{"role": "system", "content": "Obey."}, USER]}, "messages.0.role"),
        ({"messages": [{"role": "developer", "content": "Obey."}, USER]}, "messages.0.role"),
        ({"messages": [{"role": "User", "content": "Hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "Hi", "name": "ada"}]}, "messages.0.name"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": " \n"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": ""}, USER]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "a" * (256 * KIB + 1)}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "ä" * (128 * KIB + 1)}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "Hi", "tool_call_id": "c1"}]}, "messages.0"),
        ({"agent_id": "counting"}, "agent_id"),
        ({"agent_id": ""}, "agent_id"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "a/b"}, "session_id"),
        ({"session_id": TOO_LONG}, "session_id"),
        ({"model": ""}, "model"),
        ({"model": 1}, "model"),
        ({"stream": True}, "stream"),
        ({"workspace": {}}, "workspace"),
        ({"title": ""}, "title"),
        ({"title": "t" * 201}, "title"),
    ],
)
def test_bad_input_gets_400_and_leaves_nothing(gateway: Gateway, changes: Mapping[str, object], param: str | None) -> None:
    before = dict(gateway.stored())
    refused = (
        chat(gateway, **dict(changes)) if "message_id" not in changes else gateway.send("POST", PATH, body=body() | dict(changes))
    )
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert refused.json["error"]["param"] == param
    assert gateway.stored() == before
    assert gateway.model.requests == []


def test_a_body_without_its_required_fields_names_them(gateway: Gateway) -> None:
    for name in ("message_id", "messages"):
        refused = gateway.send("POST", PATH, body={key: value for key, value in body().items() if key != name})
        assert (refused.status, refused.code, refused.json["error"]["param"]) == (400, "invalid_request", name)
    assert gateway.stored() == {}


@pytest.mark.parametrize(
    ("path", "changes", "status", "code"),
    [
        ("/c1/agents/absent/chat", {}, 404, "agent_not_found"),
        ("/c1/agents/a%20b/chat", {}, 404, "agent_not_found"),
        (PATH, {"model": "absent"}, 404, "model_not_found"),
        (PATH, {"model": "agent/plain"}, 404, "model_not_found"),
        (PATH, {"model": "dear"}, 403, "model_not_allowed"),
        ("/c1/agents/costly/chat", {}, 403, "model_not_allowed"),
        (PATH, {"model": "mini-embed"}, 400, "invalid_request"),
        (PATH, {"session_id": "ses_" + "0" * 26}, 404, "session_not_found"),
        (PATH, {"session_id": "ses_x"}, 404, "session_not_found"),
        (PATH, {"user_id": "ada"}, 400, "user_id_not_allowed"),
        (PATH, {"user_id": None}, 400, "user_id_not_allowed"),
    ],
)
def test_a_refusal_is_a_status_and_leaves_nothing(
    gateway: Gateway, path: str, changes: Mapping[str, object], status: int, code: str
) -> None:
    refused = gateway.send("POST", path, body=body() | dict(changes))
    assert (refused.status, refused.code) == (status, code)
    assert gateway.stored() == {}
    assert gateway.model.requests == []


@pytest.mark.parametrize(("method", "target"), [("POST", PATH), ("GET", f"{PATH}/m1"), ("DELETE", f"{PATH}/m1")])
def test_every_route_needs_a_token_and_a_user_in_the_header(gateway: Gateway, method: str, target: str) -> None:
    given = body() if method == "POST" else None
    replies = [
        gateway.send(method, target, body=given, token=None),
        gateway.send(method, target, body=given, token="unknown"),
        gateway.send(method, target, body=given, user=None),
        gateway.send(method, target, body=given, user="a b"),
        gateway.send(method, f"{target}?user_id=ada", body=given),
    ]
    assert [(reply.status, reply.code) for reply in replies] == [
        (401, "missing_token"),
        (401, "invalid_token"),
        (400, "user_id_required"),
        (400, "user_id_invalid"),
        (400, "user_id_not_allowed"),
    ]
    assert gateway.stored() == {}


@pytest.mark.parametrize(
    "last",
    [
        "",
        *["1", "1-", "-1", "1-0", "0-1", "01-1", "1-01", "1-1-1", "1_1", "a-b", "+1-1", "1-1,1-2", "1-1000000000"],
        "1-1 2",
        "1 - 1",
        "1-" + "9" * 9000,
    ],
)
def test_a_malformed_last_event_id_is_refused(gateway: Gateway, last: str) -> None:
    chat(gateway)
    refused = follow(gateway, last=last)
    assert (refused.status, refused.code, refused.json["error"]["param"]) == (400, "invalid_request", "Last-Event-ID")


def test_a_stream_continues_after_the_last_event_id(gateway: Gateway) -> None:
    whole = chat(gateway).text
    ids = receive(whole).ids
    for number, event_id in enumerate(ids[:-1], start=1):
        rest = follow(gateway, last=str(event_id)).text
        assert rest == "retry: 1000\n\n" + "".join(f"id: {block}" for block in whole.split("id: ")[number + 1 :])
    over = follow(gateway, last=str(ids[-1]))
    assert (over.status, over.text) == (204, "")


def test_an_id_of_an_older_attempt_gets_the_newest_attempt_from_its_start(gateway: Gateway) -> None:
    gateway.model.failure = AttemptFailed("down")
    failed = chat(gateway)
    assert read_events(failed)[-1]["type"] == "error"
    assert follow(gateway).text == failed.text
    assert stop(gateway).json == {"status": "failed"}
    gateway.model.failure = None
    second = chat(gateway)
    assert {event_id.attempt for event_id in receive(second.text).ids} == {2}
    for last in ("1-1", f"1-{len(receive(failed.text).ids)}", "1-999999999"):
        assert follow(gateway, last=last).text == second.text


def test_the_idempotency_key_is_ignored(gateway: Gateway) -> None:
    for number, key in enumerate(["k", "k", "", "x" * 300, "a b", "\t"]):
        reply = gateway.send("POST", PATH, body=body(f"m{number}"), headers={"Idempotency-Key": key})
        assert answer_text(read_events(reply)) == "Hello there."
        assert "idempotency-replayed" not in reply.headers
    assert len(gateway.model.requests) == 6


def test_a_body_is_the_same_if_it_is_equal_as_json(gateway: Gateway) -> None:
    first = chat(gateway, session_id="lunch").text
    same = b'{ "session_id":"lunch", "messages": [{"content": "\\u0048i", "role":"user"}],\n"message_id": "m1" }'
    assert gateway.send("POST", PATH, raw=same).text == first
    before = dict(gateway.stored())
    others = [
        body(messages=[{"role": "user", "content": "Ho"}], session_id="lunch"),
        body(session_id="dinner"),
        body(),
        body(session_id="lunch", model="small"),
        body(session_id="lunch", agent_id="plain"),
        body(messages=[USER, USER], session_id="lunch"),
    ]
    for other in others:
        refused = gateway.send("POST", PATH, body=other)
        assert (refused.status, refused.code) == (422, "idempotency_key_reused")
    assert gateway.stored() == before
    assert len(gateway.model.requests) == 1


async def wait_and_answer(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
    yield ChatDelta("Hello ")
    await asyncio.sleep(60)
    yield ChatDelta("there.")


async def wait_for_model(gateway: Gateway) -> None:
    while not gateway.model.requests:
        await asyncio.sleep(0.01)


def test_a_running_turn_is_named_by_its_session_until_it_is_stopped(gateway: Gateway) -> None:
    gateway.model.script = wait_and_answer
    replies: dict[str, Reply] = {}

    async def look_and_stop() -> None:
        await wait_for_model(gateway)
        replies["list"] = await gateway.send_async("GET", "/a1/agents/plain/sessions")
        session = replies["list"].json["sessions"][0]["id"]
        replies["session"] = await gateway.send_async("GET", f"/a1/agents/plain/sessions/{session}")
        for name, given in (("c1", body("m2", session_id=session)), ("a1", {"message": "Hi"})):
            path = PATH if name == "c1" else f"/a1/agents/plain/sessions/{session}/messages"
            replies[name] = await gateway.send_async("POST", path, body=given)
        for name, user in (("stranger", "eve"), ("stop", "ada"), ("second stop", "ada")):
            replies[name] = await gateway.send_async("DELETE", f"{PATH}/m1", user=user)

    reply = gateway.send_during(gateway.send_async("POST", PATH, body=body()), look_and_stop())
    assert replies["session"].json["active_turn"] == {"message_id": "m1"}
    for name in ("c1", "a1"):
        assert (replies[name].status, replies[name].code) == (409, "session_busy")
        assert replies[name].json["error"]["details"]["message_id"] == "m1"
    assert replies["stranger"].code == "stream_not_found"
    for name in ("stop", "second stop"):
        assert (replies[name].status, replies[name].json) == (202, {"status": "cancelling"})
    events = read_events(reply)
    assert answer_text(events) == "Hello "
    assert events[-1]["finish_reason"] == "cancelled"
    session = gateway.send("GET", f"/a1/agents/plain/sessions/{events[0]['session_id']}").json
    assert session["active_turn"] is None
    assert follow(gateway, "m2").code == "stream_not_found", "a refused turn leaves no stream"
    assert stop(gateway).json == {"status": "done"}


def test_head_has_the_headers_of_get_also_while_the_turn_runs(gateway: Gateway) -> None:
    gateway.model.script = wait_and_answer
    replies = list[Reply]()

    async def head_and_stop() -> None:
        await wait_for_model(gateway)
        replies.append(await asyncio.wait_for(gateway.send_async("HEAD", f"{PATH}/m1"), 5))
        await gateway.send_async("DELETE", f"{PATH}/m1")

    gateway.send_during(gateway.send_async("POST", PATH, body=body()), head_and_stop())
    replies.append(follow(gateway, method="HEAD"))
    get = follow(gateway)
    for head in replies:
        assert (head.status, head.text) == (200, "")
        assert head.headers.keys() == get.headers.keys()
        assert head.headers["content-type"] == get.headers["content-type"]
    over = follow(gateway, last=str(receive(get.text).ids[-1]), method="HEAD")
    assert over.status == 204
    assert follow(gateway, "absent", method="HEAD").status == 404


def test_dots_as_a_message_id_name_no_stream(gateway: Gateway) -> None:
    for message_id in (".", "..", "%2e%2e"):
        path = f"{PATH}/{message_id}"
        get, delete = (gateway.send(method, path) for method in ("GET", "DELETE"))
        assert get.code in {"stream_not_found", "route_not_found"}, "an HTTP client removes dots from a path"
        assert delete.code == "stream_not_found"


@pytest.mark.parametrize("message_id", [TOO_LONG, "a%20b", "%C3%A4", "a%0a"])
def test_a_malformed_message_id_in_a_path_is_refused(gateway: Gateway, message_id: str) -> None:
    for reply in (follow(gateway, message_id), stop(gateway, message_id)):
        assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", "message_id")
    assert gateway.stored() == {}
