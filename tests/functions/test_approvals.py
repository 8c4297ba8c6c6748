"""Approvals: a gated call waits, a person decides once, and what was previewed is what happens."""

import time
from typing import Any

import pytest

from spass.agents.approving import Decisions
from spass.approvals.record import DECIDE_SECONDS
from spass.approvals.service import Approvals
from tests.functions.waiting_agents import AGENT, APPROVALS, DELETE_ALPHA, NOTES, Call, Clerk
from tests.stream_grammar import of_type, read_events

FIELDS = [
    *("id", "status", "tool", "arguments", "preview", "rich", "agent", "session_id", "message_id", "reason", "result", "error"),
    *("created_at", "expires_at", "decided_at"),
]
MORE = [{"id": "c", "text": "gamma"}]


def test_a_gated_call_changes_nothing_and_tells_the_model_that_it_waits(clerk: Clerk) -> None:
    reply = clerk.ask(DELETE_ALPHA)
    result = reply.json["tool_calls"][0]["result"]
    assert list(result) == ["approval_required", "approval_id", "expires_at", "preview", "message"]
    assert result["preview"]["text_excerpt"] == "alpha"
    assert reply.json["message"]["content"] == "It waits."
    assert clerk.documents() == ["a", "b"]
    (approval,) = clerk.approvals()
    assert list(approval) == FIELDS
    assert approval == {
        **dict.fromkeys(("message_id", "reason", "result", "error", "decided_at")),
        "id": result["approval_id"],
        "status": "pending",
        "tool": "rag_doc_delete",
        "arguments": DELETE_ALPHA[1],
        "preview": result["preview"],
        "rich": [],
        "agent": "clerk",
        "session_id": clerk.session,
        "created_at": approval["created_at"],
        "expires_at": result["expires_at"],
    }
    assert clerk.get(approval["id"]) == approval


def test_approving_executes_the_stored_call_and_answers_when_it_is_done(clerk: Clerk) -> None:
    waiting = clerk.wait_for()
    reply = clerk.decide(waiting["id"], reason="Fine.")
    assert reply.status == 200
    assert clerk.documents() == ["b"]
    assert reply.json == {
        **waiting,
        "status": "executed",
        "reason": "Fine.",
        "result": {"deleted": True},
        "decided_at": reply.json["decided_at"],
    }
    assert clerk.get(waiting["id"]) == reply.json


WRITES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("rag_doc_delete", {"index_id": "notes", "doc_id": "a"}, ["b"]),
    ("rag_index_delete", {"index_id": "notes"}, []),
    ("rag_doc_append", {"index_id": "notes", "documents": MORE}, ["a", "b", "c"]),
    ("rag_doc_patch", {"index_id": "notes", "doc_id": "a", "text": "omega"}, ["a", "b"]),
    ("rag_index_create", {"index_id": "notes", "documents": MORE}, ["c"]),
    ("memory_write", {"note": "The team meets on Mondays."}, ["a", "b"]),
]


@pytest.mark.parametrize(("name", "arguments", "documents"), WRITES)
def test_each_tool_in_two_steps_can_wait_and_be_executed(
    clerk: Clerk, name: str, arguments: dict[str, Any], documents: list[str]
) -> None:
    waiting = clerk.wait_for(name, arguments)
    assert clerk.documents() == ["a", "b"]
    executed = clerk.decide(waiting["id"]).json
    assert (executed["status"], executed["error"]) == ("executed", None)
    assert clerk.documents() == documents
    if name == "memory_write":
        config = clerk.gateway.send("GET", "/v1/tenant/config", token=clerk.token)
        assert config.json["config"]["memory"] == arguments["note"]
    if name == "rag_doc_patch":
        assert clerk.gateway.send("GET", f"{NOTES}/documents/a").json["text"] == "omega"


def test_denying_changes_nothing_and_keeps_the_reason(clerk: Clerk) -> None:
    waiting = clerk.wait_for()
    reply = clerk.decide(waiting["id"], "deny", reason="Alpha is still needed.")
    assert (reply.status, reply.json["status"], reply.json["reason"]) == (200, "denied", "Alpha is still needed.")
    assert reply.json["result"] is reply.json["error"] is None
    assert clerk.documents() == ["a", "b"]


@pytest.mark.parametrize("first", ["approve", "deny"])
@pytest.mark.parametrize("second", ["approve", "deny"])
def test_a_second_decision_is_refused_and_has_no_effect(clerk: Clerk, first: str, second: str) -> None:
    waiting = clerk.wait_for()
    decided = clerk.decide(waiting["id"], first).json
    again = clerk.decide(waiting["id"], second)
    assert (again.status, again.code, again.json["error"]["details"]) == (409, "approval_decided", {"status": decided["status"]})
    assert clerk.get(waiting["id"]) == decided


def test_another_users_approval_is_not_found(clerk: Clerk) -> None:
    waiting = clerk.wait_for()
    absent = "apr_" + "0" * 26
    for path, user, token in (
        (waiting["id"], "bob", "demo-token"),
        (waiting["id"], "ada", "other-token"),
        (absent, "ada", "demo-token"),
        ("apr_1", "ada", "demo-token"),
    ):
        for method, body in (("GET", None), ("POST", {"decision": "approve"})):
            reply = clerk.gateway.send(method, f"{APPROVALS}/{path}", user=user, token=token, body=body)
            assert (reply.status, reply.code) == (404, "approval_not_found")
    assert clerk.approvals(user="bob") == []
    assert clerk.get(waiting["id"])["status"] == "pending"
    assert clerk.documents() == ["a", "b"]


def set_clock(clerk: Clerk, seconds: float) -> None:
    """Let decisions and lists read a clock that is ``seconds`` ahead."""
    services = clerk.gateway.services
    services.approvals = Approvals(lambda: time.time() + seconds)
    services.decisions = Decisions(lambda: services.agents, lambda: services.toolbox, lambda: time.time() + seconds)


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_after_24_hours_an_approval_is_expired_and_cannot_be_decided(clerk: Clerk, decision: str) -> None:
    waiting = clerk.wait_for()
    set_clock(clerk, DECIDE_SECONDS - 60)
    assert clerk.get(waiting["id"])["status"] == "pending"
    set_clock(clerk, DECIDE_SECONDS)
    late = clerk.decide(waiting["id"], decision)
    assert (late.status, late.code, late.json["error"]["details"]) == (409, "approval_decided", {"status": "expired"})
    assert clerk.get(waiting["id"])["status"] == "expired"
    assert [approval["id"] for approval in clerk.approvals("?status=expired")] == [waiting["id"]]
    assert clerk.approvals("?status=pending") == []
    assert clerk.documents() == ["a", "b"]


def test_lists_are_filtered_by_status_and_session(clerk: Clerk) -> None:
    first, second = clerk.wait_for(), clerk.wait_for()
    clerk.session = clerk.gateway.send("POST", "/a1/agents/clerk/sessions").json["id"]
    third = clerk.wait_for()
    clerk.decide(first["id"], "deny")

    def ids(query: str) -> list[str]:
        return [approval["id"] for approval in clerk.approvals(query)]

    assert ids("") == ids("?status=&session_id=") == [third["id"], second["id"], first["id"]]
    assert ids("?status=pending") == [third["id"], second["id"]]
    assert ids("?status=denied") == [first["id"]]
    assert ids(f"?session_id={clerk.session}") == [third["id"]]
    assert ids(f"?session_id={second['session_id']}&status=pending") == [second["id"]]
    assert ids("?session_id=nowhere") == []
    page = clerk.gateway.send("GET", f"{APPROVALS}?limit=2").json
    assert [approval["id"] for approval in page["approvals"]] == [third["id"], second["id"]]
    assert ids(f"?limit=2&cursor={page['next_cursor']}") == [first["id"]]
    for query in (
        "status=maybe",
        "session_id=a%20b",
        "status=pending&status=denied",
        f"cursor={page['next_cursor']}&status=denied",
    ):
        assert clerk.gateway.send("GET", f"{APPROVALS}?{query}").code == "invalid_request"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"decision": "maybe"},
        {"decision": True},
        {"decision": "approve", "reason": 1},
        {"decision": "deny", "reason": "x" * 4097},
        {"decision": "deny", "reason": "\0"},
        {"decision": "approve", "arguments": {"doc_id": "b"}},
        {"decision": "approve", "user_id": "ada"},
    ],
)
def test_a_malformed_decision_decides_nothing(clerk: Clerk, body: dict[str, Any]) -> None:
    waiting = clerk.wait_for()
    assert clerk.gateway.send("POST", f"{APPROVALS}/{waiting['id']}", body=body).status == 400
    assert clerk.get(waiting["id"]) == waiting
    assert clerk.decide(waiting["id"], "deny", reason="").json["status"] == "denied"


def test_a_confirm_token_in_a_gated_call_is_ignored(clerk: Clerk) -> None:
    preview = clerk.gateway.send("POST", "/v1/tools/execute", body={"name": DELETE_ALPHA[0], "arguments": DELETE_ALPHA[1]})
    token = preview.json["result"]["confirm_token"]
    waiting = clerk.wait_for(DELETE_ALPHA[0], {**DELETE_ALPHA[1], "confirm_token": token})
    assert waiting["arguments"] == DELETE_ALPHA[1]
    assert clerk.documents() == ["a", "b"]
    assert clerk.wait_for(DELETE_ALPHA[0], {**DELETE_ALPHA[1], "confirm_token": "nonsense"})["status"] == "pending"
    assert clerk.decide(waiting["id"]).json["status"] == "executed"


def test_direct_calls_keep_the_two_steps(clerk: Clerk) -> None:
    call = {"name": DELETE_ALPHA[0], "arguments": DELETE_ALPHA[1]}
    preview = clerk.gateway.send("POST", "/v1/tools/execute", body=call).json["result"]
    assert preview["confirm_required"] is True
    call["arguments"] = {**DELETE_ALPHA[1], "confirm_token": preview["confirm_token"]}
    assert clerk.gateway.send("POST", "/v1/tools/execute", body=call).json["result"] == {"deleted": True}
    assert clerk.approvals() == []


def test_in_a_single_shot_nobody_can_decide(clerk: Clerk) -> None:
    question = {"message": "Do it."}
    chat = {"model": "agent/clerk", "messages": [{"role": "user", "content": "Do it."}]}
    for path, body in (
        ("/a1/agents/clerk/chat", question),
        ("/v1/ask", {"input": "Do it.", "agent": "clerk"}),
        ("/v1/chat/completions", chat),
    ):
        clerk.script(DELETE_ALPHA)
        assert clerk.gateway.send("POST", path, body=body, token=clerk.token).status == 200
        results = [message.content for message in clerk.gateway.model.requests[-1].messages if message.tool_call_id]
        assert ["approval_unavailable" in result for result in results] == [True]
    assert clerk.approvals() == []
    assert clerk.documents() == ["a", "b"]


def test_an_invalid_gated_call_is_an_error_and_stores_nothing(clerk: Clerk) -> None:
    calls: list[Call] = [
        ("rag_doc_delete", {"index_id": "notes"}),
        ("rag_doc_delete", {"index_id": "notes", "doc_id": "nowhere"}),
        ("rag_index_delete", {"index_id": "nowhere"}),
        ("rag_doc_append", {"index_id": "notes", "documents": [{"id": "x", "text": "y" * 9000}]}),
    ]
    results = [call["result"]["error"]["code"] for call in clerk.ask(*calls).json["tool_calls"]]
    assert results == ["invalid_arguments", "document_not_found", "index_not_found", "document_too_large"]
    assert clerk.approvals() == []


def test_a_changed_document_or_index_is_not_touched(clerk: Clerk) -> None:
    document, index, append = (
        clerk.wait_for(),
        clerk.wait_for("rag_index_delete", {"index_id": "notes"}),
        clerk.wait_for("rag_doc_append", {"index_id": "notes", "documents": [{"id": "a", "text": "again"}, *MORE]}),
    )
    clerk.gateway.send("PATCH", f"{NOTES}/documents/a", body={"text": "changed"})
    for waiting in (document, index):
        failed = clerk.decide(waiting["id"])
        assert (failed.status, failed.json["status"], failed.json["error"]["code"]) == (200, "failed", "confirm_token_invalid")
        assert failed.json["result"] is None
    assert clerk.documents() == ["a", "b"]
    assert clerk.decide(append["id"]).json["status"] == "executed"  # it replaces the same documents as before
    assert clerk.documents() == ["a", "b", "c"]


def test_a_deleted_index_fails_the_calls_about_it(clerk: Clerk) -> None:
    waiting = clerk.wait_for()
    clerk.gateway.send("DELETE", NOTES)
    assert clerk.decide(waiting["id"]).json["error"]["code"] == "confirm_token_invalid"


def test_approving_runs_within_the_agents_file_of_now(clerk: Clerk) -> None:
    ungated, without_tool, without_agent = clerk.wait_for(), clerk.wait_for(), clerk.wait_for()
    clerk.write_file(AGENT.replace("tools: [rag_doc_delete, ", "tools: [").replace("approval: [rag_doc_delete, ", "approval: ["))
    assert clerk.decide(without_tool["id"]).json["error"]["code"] == "tool_not_found"
    clerk.write_file(AGENT.partition("approval:")[0])
    (clerk.gateway.services.settings.agents / "clerk.yaml").rename(clerk.gateway.services.settings.agents / "clerk.txt")
    clerk.gateway.services.__dict__.pop("agents", None)
    assert clerk.decide(without_agent["id"]).json["error"]["code"] == "agent_not_found"
    assert clerk.documents() == ["a", "b"]
    clerk.write_file(AGENT.partition("approval:")[0])
    assert clerk.decide(ungated["id"]).json["status"] == "executed"
    assert clerk.documents() == ["b"]


def test_who_lacks_the_right_of_the_tool_leaves_the_approval_to_somebody_who_has_it(clerk: Clerk) -> None:
    note = "The team meets on Mondays."
    waiting = clerk.wait_for("memory_write", {"note": note})
    for _ in range(2):
        refused = clerk.decide(waiting["id"], token="demo-token", headers={"Idempotency-Key": "plain"})
        assert (refused.status, refused.code) == (403, "admin_required")
    assert clerk.get(waiting["id"]) == waiting
    assert clerk.gateway.send("GET", "/v1/tenant/config", token=clerk.token).json["config"]["memory"] is None
    assert clerk.decide(waiting["id"]).json["status"] == "executed"
    assert clerk.gateway.send("GET", "/v1/tenant/config", token=clerk.token).json["config"]["memory"] == note


@pytest.mark.parametrize("name", ["rag_doc_delete", "rag_doc_patch"])
def test_a_person_sees_the_whole_text_that_would_be_lost(clerk: Clerk, name: str) -> None:
    text = "a" * 400 + " the line that matters"
    clerk.gateway.send("PATCH", f"{NOTES}/documents/a", body={"text": text, "metadata": {"kind": "sight"}})
    new = {"text": "omega", "metadata": {}} if name == "rag_doc_patch" else {}
    preview = clerk.wait_for(name, {"index_id": "notes", "doc_id": "a", **new})["preview"]
    if name == "rag_doc_delete":
        assert (preview["text_excerpt"], preview["text_excerpt_truncated"]) == (text, False)
        assert preview["metadata"] == {"kind": "sight"}
    else:
        assert (preview["old_text"], preview["new_text"]) == (text, "omega")
        assert (preview["old_metadata"], preview["new_metadata"]) == ({"kind": "sight"}, {})


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), (0, False)])
def test_metadata_that_python_takes_for_equal_is_shown(clerk: Clerk, old: float, new: float) -> None:
    clerk.gateway.send("PATCH", f"{NOTES}/documents/a", body={"metadata": {"admin": old}})
    preview = clerk.wait_for("rag_doc_patch", {"index_id": "notes", "doc_id": "a", "metadata": {"admin": new}})["preview"]
    assert preview["changed_fields"] == ["metadata"]
    assert [repr(preview[f"{side}_metadata"]["admin"]) for side in ("old", "new")] == [repr(old), repr(new)]


def test_an_idempotency_key_replays_a_decision(clerk: Clerk) -> None:
    for decision in ("approve", "deny"):
        waiting = clerk.wait_for("rag_doc_append", {"index_id": "notes", "documents": MORE})
        first, replay = (clerk.decide(waiting["id"], decision, headers={"Idempotency-Key": decision}) for _ in range(2))
        assert first.status == replay.status == 200
        assert first.json == replay.json
        assert replay.headers["idempotency-replayed"] == "true"
        other = clerk.decide(waiting["id"], decision, headers={"Idempotency-Key": "other"})
        assert other.code == "approval_decided"
    assert clerk.documents() == ["a", "b", "c"]


def test_an_execution_is_audited_under_the_request_of_the_decision(clerk: Clerk) -> None:
    waiting = clerk.wait_for("rag_doc_append", {"index_id": "notes", "documents": MORE})
    reply = clerk.decide(waiting["id"])
    (call,) = clerk.gateway.send("GET", f"/v1/audit/{reply.headers['spass-request-id']}", token=clerk.token).json["calls"]
    assert (call["kind"], call["tool"], call["status"], call["agent"]) == ("tool", "rag_doc_append", "ok", "clerk")
    assert call["session"] == clerk.session
    assert [inner["kind"] for inner in call["calls"]] == ["embedding"]
    assert reply.headers["spass-cost-sub-calls"] == "1"


def test_a_stream_shows_the_approval_after_its_call(clerk: Clerk) -> None:
    events = read_events(clerk.ask(DELETE_ALPHA, stream=True))
    (approval,) = of_type(events, "approval")
    kinds = [event["type"] for event in events]
    assert kinds[kinds.index("approval") - 1] == "tool_call"
    message_id = events[0]["message_id"]
    assert approval["approval"] == {**clerk.approvals()[0], "message_id": message_id}


def test_the_model_reads_the_result_or_the_reason_in_the_next_turn(clerk: Clerk) -> None:
    approved, denied, failed, waiting = (
        clerk.wait_for("rag_doc_append", {"index_id": "notes", "documents": MORE}),
        clerk.wait_for(),
        clerk.wait_for("rag_index_delete", {"index_id": "notes"}),
        clerk.wait_for("rag_doc_delete", {"index_id": "notes", "doc_id": "b"}),
    )
    result = clerk.decide(approved["id"]).json["result"]
    clerk.decide(denied["id"], "deny", reason="Alpha is still needed.")
    error = clerk.decide(failed["id"]).json["error"]
    seen = clerk.read_by_model()
    assert seen[0] == result
    assert "Alpha is still needed." in seen[1]["error"]["message"]
    assert seen[2] == {"error": error}
    assert seen[3]["approval_id"] == waiting["id"]

    history = clerk.gateway.send("GET", f"{clerk.path}/messages").json["messages"]
    recorded = [message["content"] for message in history if message["role"] == "tool"]
    assert all("approval_required" in content for content in recorded)


def test_deleting_a_session_deletes_its_approvals(clerk: Clerk) -> None:
    first, second = clerk.wait_for(), clerk.wait_for()
    clerk.decide(first["id"], "deny")
    clerk.gateway.send("DELETE", clerk.path)
    assert clerk.approvals() == []
    for waiting in (first, second):
        assert clerk.decide(waiting["id"]).code == "approval_not_found"
    assert clerk.documents() == ["a", "b"]
    assert "APR#" not in str(clerk.gateway.stored())


def test_an_agent_without_gates_makes_no_call_for_them(clerk: Clerk) -> None:
    clerk.write_file(AGENT.partition("approval:")[0])
    reply = clerk.ask(DELETE_ALPHA)
    assert reply.json["tool_calls"][0]["result"]["confirm_required"] is True
    assert "APR#" not in str(clerk.gateway.stored())
