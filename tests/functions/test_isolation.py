"""Every route, called by another user or tenant: the owner's data is neither shown nor changed."""

import pytest

from infra.routes import ROUTES
from spass.agents.registry import AgentRegistry
from tests.functions.gateway import Gateway

NO_JOB = "job_" + "0" * 26  # tests of jobs check the owner of a job
FILE = {"Content-Type": "application/octet-stream"}
NO_APPROVAL = "apr_" + "0" * 26  # tests of approvals check the owner of an approval
NO_AGENT, NO_RUN = "agt_" + "0" * 26, "run_" + "0" * 26  # tests of managed agents check their owner
NEVER_FOUND = {
    "streams.get": "stream_not_found",
    "jobs.get": "job_not_found",
    "rag.uploads_get": "upload_not_found",
    "approvals.get": "approval_not_found",
    "operators.get": "operator_not_found",
    "operators.notes": "operator_not_found",
    **{f"managed.{name}": "agent_not_found" for name in ("get", "messages", "runs", "run_get", "run_stream")},
}
# Resources that the users of a tenant share, by the variable that names them.
SHARED = {"{index_id}": "index_not_found", "{workspace_id}": "workspace_not_found"}
BODIES: dict[str, dict[str, object]] = {
    "sessions.append": {"message": "x"},
    "rag.query": {"query": "alpha"},
    "rag.documents_patch": {"metadata": {}},
    "rag.uploads_create": {"filename": "private.md", "content_type": "text/markdown", "size": 10},
    "workspaces.restore": {"version": 1},
    "managed.patch": {"name": "b"},
}
QUERIES = dict.fromkeys(("workspaces.file_get", "workspaces.file_put", "workspaces.file_delete"), "?path=private.md")
# They write to the caller's own index or workspace of that name.
CREATE = {"rag.replace", "rag.append", "rag.uploads_create", "workspaces.file_put", "workspaces.archive_put"}


@pytest.mark.moto
@pytest.mark.parametrize(
    ("token", "user"),
    [("other-token", "ada"), ("sibling-token", "ada"), ("demo-token", "bob")],
    ids=["a foreign tenant", "a sibling tenant", "another user"],
)
def test_others_cannot_find_a_session_or_an_index(gateway: Gateway, token: str, user: str) -> None:
    session = gateway.send("POST", "/a1/agents/plain/sessions", body={"title": "private-title"}).json["id"]
    turn = gateway.send("POST", f"/a1/agents/plain/sessions/{session}/messages", body={"message": "private-word"})
    request_id = turn.json["request_id"]
    gateway.set_config(memory="private-memory")
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "private-text"}]})
    upload = gateway.send("POST", "/a1/rag/indices/notes/uploads", body=BODIES["rag.uploads_create"]).json["upload_id"]
    stream = {"message_id": "private-m", "messages": [{"role": "user", "content": "private-word"}]}
    gateway.send("POST", "/c1/agents/plain/chat", body=stream)
    gateway.send("PUT", "/a1/workspaces/notes/file?path=private.md", raw=b"private-text", headers=FILE)
    before = gateway.stored()
    shared = token == "demo-token"
    for route in ROUTES:
        on_session = "{session_id}" in route.path
        shared_by_users = next((code for name, code in SHARED.items() if name in route.path), None)
        if shared_by_users and (shared or route.module in CREATE):
            continue
        values = {"name": "plain", "session_id": session, "index_id": "notes", "doc_id": "a", "model": "small", "file": "x.css"}
        values |= {"asset": "x.css"}
        values |= {"upload_id": upload, "request_id": request_id, "job_id": NO_JOB, "approval_id": NO_APPROVAL}
        values |= {"operator_id": "private-operator", "agent_id": NO_AGENT, "run_id": NO_RUN}
        path = route.path.format(**values, message_id="private-m", workspace_id="notes") + QUERIES.get(route.module, "")
        if not (shared_by_users or on_session) and route.method != "GET":
            continue
        reply = gateway.send(
            route.method, path, token=token, user=user, headers={"SPASS-User-Id": user}, body=BODIES.get(route.module)
        )
        if on_session:
            assert reply.code == "session_not_found", path
        elif shared_by_users and route.method == "DELETE":
            assert reply.code == shared_by_users or reply.json == {"deleted": False}, path
        elif route.module == "rag.uploads_list":  # files may arrive before the index exists
            assert reply.json == {"uploads": [], "next_cursor": None}
        elif route.module == "audit.get":
            assert reply.code == "request_not_found"
        elif route.module == "usage.get":
            assert [row["key"] for row in reply.json["usage"]] == (["plain", None] if shared else [])
        elif route.module in NEVER_FOUND:
            assert reply.code == NEVER_FOUND[route.module]
        elif shared_by_users:
            assert reply.code == shared_by_users, path
        if not (shared and route.module in {"rag.list", "tenant.config_get"}):
            assert "private" not in reply.text, path
            assert session not in reply.text, path
    changed = {key for key, value in gateway.stored().items() if before.get(key) != value}
    assert {key for key in changed if key.startswith("T#demo#")} == set()
    assert set(before) <= set(gateway.stored())


def test_another_users_session_looks_like_an_absent_one(gateway: Gateway) -> None:
    session = gateway.send("POST", "/a1/agents/plain/sessions").json["id"]
    absent = "ses_" + "0" * 26
    for method, tail, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/messages", None),
        ("POST", "/messages", {"message": "x"}),
    ):
        other_reply, absent_reply = (
            gateway.send(method, f"/a1/agents/plain/sessions/{name}{tail}", user="bob", body=body) for name in (session, absent)
        )
        assert (other_reply.status, other_reply.json["error"]) == (absent_reply.status, absent_reply.json["error"])


def test_a_session_belongs_to_one_agent(gateway: Gateway) -> None:
    session = gateway.send("POST", "/a1/agents/plain/sessions").json["id"]
    at = f"/a1/agents/counting/sessions/{session}"
    reads = [("GET", f"{at}{tail}") for tail in ("", "/messages", "/lineage")]
    for method, path in (*reads, ("POST", f"{at}/messages"), ("DELETE", at)):
        reply = gateway.send(method, path, body={"message": "x"} if method == "POST" else None)
        assert (reply.status, reply.code) == (400, "session_agent_mismatch")


def test_a_session_of_a_removed_agent_can_be_read_and_deleted(gateway: Gateway) -> None:
    session = gateway.send("POST", "/a1/agents/plain/sessions").json["id"]
    for method in ("GET", "DELETE"):
        assert gateway.send(method, f"/a1/agents/nobody/sessions/{session}").code == "session_agent_mismatch"
    reply = gateway.send("POST", f"/a1/agents/nobody/sessions/{session}/messages", body={"message": "x"})
    assert reply.code == "agent_not_found"
    gateway.services.agents = AgentRegistry([])
    assert gateway.send("GET", f"/a1/agents/plain/sessions/{session}").json["id"] == session
    assert gateway.send("GET", f"/a1/agents/plain/sessions/{session}/messages").json["messages"] == []
    reply = gateway.send("POST", f"/a1/agents/plain/sessions/{session}/messages", body={"message": "x"})
    assert reply.code == "agent_not_found"
    assert gateway.send("DELETE", f"/a1/agents/plain/sessions/{session}").json == {"deleted": True}
