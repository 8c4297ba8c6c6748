"""Call every route as another tenant, as a tenant with a similar name, and as another user."""

import io
import json
import secrets
import zipfile
from dataclasses import dataclass
from typing import NamedTuple

import httpx
import pytest

from infra.routes import ROUTES, Route
from spass.aws.clients import Aws
from spass.core.ids import AgentName, Operator, OperatorId, SessionId, TenantId, UserId
from spass.core.time import now
from spass.memory.state import state_creation, state_update
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


SECRET = "Kilimandscharo"
FILE = "notes/a.md"
NO_JOB = "job_" + "0" * 26  # an absent job; the tests of jobs check the owner of a job
NO_APPROVAL = "apr_" + "0" * 26  # likewise
NO_AGENT, NO_RUN = "agt_" + "0" * 26, "run_" + "0" * 26  # likewise


@dataclass(frozen=True, slots=True)
class OwnedResources:
    """Resources of user ``ada`` of tenant ``demo``. Their names are unique."""

    index: str
    document: str
    session: str
    upload: str
    request: str
    stream: str
    workspace: str
    operator: str

    def path(self, route: Route) -> str:
        owned = {"session_id": self.session, "index_id": self.index, "doc_id": self.document, "upload_id": self.upload}
        owned |= {"request_id": self.request, "job_id": NO_JOB, "message_id": self.stream, "approval_id": NO_APPROVAL}
        owned |= {"workspace_id": self.workspace, "operator_id": self.operator, "agent_id": NO_AGENT, "run_id": NO_RUN}
        path = route.path.format_map({"name": "concise-de", "model": "llama-4-scout", "file": "x.css", "asset": "x.css", **owned})
        return path + (f"?path={FILE}" if route.path.endswith("/file") else "")


def headers_of(tenant: str, user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {tenant}-token", "SPASS-User-Id": user}


@pytest.fixture
async def owned(client: httpx.AsyncClient, aws: Aws) -> OwnedResources:
    unique = secrets.token_hex(4)
    index, document = f"index-{unique}", f"doc-{unique}"
    owner = headers_of("demo", "ada")
    body = {"documents": [{"id": document, "text": f"{SECRET} ist ein Berg.", "metadata": {"secret": SECRET}}]}
    (await client.post(f"/a1/rag/indices/{index}/documents", json=body, headers=owner)).raise_for_status()
    created = await client.post("/a1/agents/concise-de/sessions", json={"title": SECRET}, headers=owner)
    assert created.status_code == 201
    file = {"filename": f"{SECRET}.md", "content_type": "text/markdown", "size": 10}
    upload = await client.post(f"/a1/rag/indices/{index}/uploads", json=file, headers=owner)
    assert upload.status_code == 200
    query = await client.post(f"/a1/rag/indices/{index}/query", json={"query": SECRET}, headers=owner)
    chat = {"message_id": f"m-{unique}", "messages": [{"role": "user", "content": f"{SECRET}?"}]}
    streamed = await client.post("/c1/agents/concise-de/chat", json=chat, headers=owner)
    assert streamed.status_code == 200
    request = query.headers["SPASS-Request-Id"]
    target = f"/a1/workspaces/space-{unique}/file?path={FILE}"
    (await client.put(target, content=SECRET.encode(), headers=owner | RAW["workspaces.file_put"].headers)).raise_for_status()
    session, upload_id = created.json()["id"], upload.json()["upload_id"]
    await store_operator(aws, f"operator-{unique}", SessionId(session))
    return OwnedResources(index, document, session, upload_id, request, f"m-{unique}", f"space-{unique}", f"operator-{unique}")


async def store_operator(aws: Aws, name: str, session: SessionId) -> None:
    """Store an operator of user ``ada`` of tenant ``demo``, as its first turn would."""
    store, operator = aws.for_tenant(TenantId("demo")), Operator(UserId("ada"), OperatorId(name))
    at = now()
    await store.table.write(state_creation(store, operator, session, AgentName("concise-de"), at))
    await store.table.write(state_update(store, operator, session, session, SECRET, at))


BODIES: dict[str, object] = {
    "sessions.append": {"message": "Was ist das?"},
    "sessions.compact": {},
    "rag.query": {"query": "Berg"},
    "rag.replace": {"documents": [{"id": "mine", "text": "Etwas anderes."}]},
    "rag.append": {"documents": [{"id": "mine", "text": "Etwas anderes."}]},
    "rag.documents_patch": {"text": "Etwas anderes.", "metadata": {}},
    "rag.uploads_create": {"filename": "mine.md", "content_type": "text/markdown", "size": 10},
    "sessions.create": {},
    "agents.chat": {"message": "Was ist das?"},
    "approvals.decide": {"decision": "approve"},
    "streams.create": {"message_id": "m1", "messages": [{"role": "user", "content": "Was ist das?"}]},
    "streams.job_card": {"title": "Frage", "task": "Was ist das?"},
    "ask.create": {"input": "Was ist das?", "agent": "simple", "model": "llama-4-scout"},
    "tenant.config_put": {"memory": "Etwas anderes."},
    "chat.completions": {"model": "llama-4-scout", "messages": [{"role": "user", "content": "Was ist das?"}]},
    "embeddings.create": {"model": "all-minilm-l6-v2", "input": "Berg"},
    "tools.execute": {"name": "rag_query", "arguments": {"index_id": "nowhere", "query": "Berg"}},
    "workspaces.restore": {"version": 1},
    "managed.create": {"name": "Meiner", "agent": "simple", "model": "llama-4-scout"},
    "managed.patch": {"name": "Meiner"},
    "managed.message_send": {"content": "Was ist das?"},
    "managed.run": {"input": "Was ist das?"},
}


class RawBody(NamedTuple):
    """The body of a route that takes bytes."""

    content: bytes
    headers: dict[str, str]


def _archive(path: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(path, content)
    return packed.getvalue()


RAW = {
    "workspaces.file_put": RawBody(b"Etwas anderes.", {"Content-Type": "application/octet-stream"}),
    "workspaces.archive_put": RawBody(_archive(FILE, b"Etwas anderes."), {"Content-Type": "application/zip"}),
}
# Path parameters that identify a resource, and the error code for a caller that does not own it.
NOT_FOUND_CODES = {
    "{session_id}": "session_not_found",
    "{upload_id}": "upload_not_found",
    "{index_id}": "index_not_found",
    "{request_id}": "request_not_found",
    "{job_id}": "job_not_found",
    "{approval_id}": "approval_not_found",
    "{message_id}": "stream_not_found",
    "{workspace_id}": "workspace_not_found",
    "{operator_id}": "operator_not_found",
    "{agent_id}": "agent_not_found",
}
# These routes do not require a resource: they act on the caller's own index or workspace, and
# uploads may precede the index.
OWN_ROUTES = {"rag.replace", "rag.append", "rag.delete", "rag.documents_delete", "rag.uploads_create", "rag.uploads_list"}
OWN_ROUTES |= {"workspaces.delete", "operators.delete", *RAW}


def not_found_code(route: Route) -> str | None:
    return next((code for name, code in NOT_FOUND_CODES.items() if name in route.path), None)


async def call(client: httpx.AsyncClient, route: Route, owned: OwnedResources, headers: dict[str, str]) -> httpx.Response:
    if route.module in RAW:
        raw = RAW[route.module]
        return await client.request(route.method, owned.path(route), content=raw.content, headers=headers | raw.headers)
    body = BODIES.get(route.module)
    if route.method in ("POST", "PUT", "PATCH"):
        assert body is not None, f"BODIES has no body for {route.module}: add one"
    return await client.request(route.method, owned.path(route), json=body, headers=headers)


@pytest.mark.parametrize("tenant", ["other", "demo-2"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_another_tenant_can_neither_read_nor_change_a_resource(
    client: httpx.AsyncClient, owned: OwnedResources, route: Route, tenant: str
) -> None:
    before = await settings_and_usage(client)
    answer = await call(client, route, owned, headers_of(tenant, "ada"))
    assert SECRET not in answer.text
    assert owned.session not in answer.text
    if route.module == "rag.list":
        assert owned.index not in answer.text
    if route.module == "workspaces.list":
        assert owned.workspace not in answer.text
    if route.module == "rag.uploads_list":
        assert answer.json()["uploads"] == []
    code = not_found_code(route)
    if code and route.module not in OWN_ROUTES:
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["code"] == code
    await assert_unchanged(client, owned)
    assert await settings_and_usage(client) == before


# The users of a tenant share its indices and workspaces, so these routes are not included.
USER_ROUTES = [route for route in ROUTES if not route.path.startswith(("/a1/rag", "/a1/workspaces"))]


@pytest.mark.parametrize("route", USER_ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_another_user_of_the_tenant_can_neither_read_nor_change_a_session(
    client: httpx.AsyncClient, owned: OwnedResources, route: Route
) -> None:
    answer = await call(client, route, owned, headers_of("demo", "bob"))
    assert SECRET not in answer.text
    assert owned.session not in answer.text
    if "{session_id}" in route.path:
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["code"] == "session_not_found"
    await assert_unchanged(client, owned)


async def test_the_answers_for_foreign_and_absent_resources_are_equal(client: httpx.AsyncClient, owned: OwnedResources) -> None:
    """Compare status, code and text."""
    absent = OwnedResources(
        "no-such-index", "no-such-doc", "ses_" + "0" * 26, "upl_" + "0" * 26, "req_" + "0" * 26, "no-such", "none", "none"
    )
    for route in ROUTES:
        if not_found_code(route) is None or route.module in OWN_ROUTES:
            continue
        foreign = await call(client, route, owned, headers_of("demo-2", "ada"))
        missing = await call(client, route, absent, headers_of("demo-2", "ada"))
        errors = [
            json.dumps(answer.json()["error"])
            .replace(owned.index, "X")
            .replace(owned.document, "Y")
            .replace(owned.session, "Z")
            .replace(owned.upload, "U")
            .replace(owned.workspace, "W")
            for answer in (foreign, missing)
        ]
        other = errors[1].replace(absent.index, "X").replace(absent.document, "Y").replace(absent.session, "Z")
        other = other.replace(absent.upload, "U").replace(repr(absent.workspace), "'W'")
        assert (foreign.status_code, errors[0]) == (missing.status_code, other), route.path


async def test_a_cursor_of_another_tenant_or_user_is_rejected(client: httpx.AsyncClient, owned: OwnedResources) -> None:
    owner = headers_of("demo", "ada")
    (await client.post("/a1/agents/concise-de/sessions", json={}, headers=owner)).raise_for_status()
    page = await client.get("/a1/agents/concise-de/sessions", params={"limit": 1}, headers=owner)
    cursor = page.json()["next_cursor"]
    assert cursor
    for other_caller in (headers_of("demo-2", "ada"), headers_of("demo", "bob")):
        answer = await client.get("/a1/agents/concise-de/sessions", params={"cursor": cursor}, headers=other_caller)
        assert answer.status_code == 400


async def test_an_idempotency_key_is_private_to_its_tenant_and_user(client: httpx.AsyncClient, owned: OwnedResources) -> None:
    key = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"title": SECRET}
    first = await client.post("/a1/agents/concise-de/sessions", json=body, headers=headers_of("demo", "ada") | key)
    replay = await client.post("/a1/agents/concise-de/sessions", json=body, headers=headers_of("demo", "ada") | key)
    assert replay.json() == first.json()
    assert replay.headers["Idempotency-Replayed"] == "true"
    for other_caller in (headers_of("demo-2", "ada"), headers_of("demo", "bob"), headers_of("other", "ada")):
        answer = await client.post("/a1/agents/concise-de/sessions", json=body, headers=other_caller | key)
        assert answer.status_code == 201
        assert "Idempotency-Replayed" not in answer.headers
        assert answer.json()["id"] != first.json()["id"]


async def settings_and_usage(client: httpx.AsyncClient) -> tuple[object, object]:
    """Return the owner's settings and usage."""
    answers = [await client.get(path, headers=headers_of("demo", "ada")) for path in ("/v1/tenant/config", "/v1/usage")]
    settings, usage = [answer.raise_for_status().json() for answer in answers]
    assert usage["total"]["requests"] > 0
    return settings, usage


async def assert_unchanged(client: httpx.AsyncClient, owned: OwnedResources) -> None:
    owner = headers_of("demo", "ada")
    document = await client.get(f"/a1/rag/indices/{owned.index}/documents/{owned.document}", headers=owner)
    assert document.json()["metadata"] == {"secret": SECRET}
    index = await client.get(f"/a1/rag/indices/{owned.index}", headers=owner)
    assert (index.json()["doc_count"], index.json()["version"]) == (1, 1)
    workspace = f"/a1/workspaces/{owned.workspace}"
    assert (await client.get(f"{workspace}/file?path={FILE}", headers=owner)).text == SECRET
    assert (await client.get(workspace, headers=owner)).json()["version"] == 1
    operator = await client.get(f"/v1/operators/{owned.operator}", headers=owner)
    assert (operator.json()["session_id"], operator.json()["state"]) == (owned.session, SECRET)
    session = await client.get(f"/a1/agents/concise-de/sessions/{owned.session}", headers=owner)
    assert session.status_code == 200
    assert session.json()["message_count"] == 0
