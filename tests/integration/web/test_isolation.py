"""Every route, called by those whom its thing does not belong to: another tenant, a sibling tenant, another user."""

import json
import secrets
from dataclasses import dataclass

import httpx
import pytest

from infra.routes import ROUTES, Route
from spass.aws.clients import Aws
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


SECRET = "Kilimandscharo"
NO_JOB = "job_" + "0" * 26  # whose a job is, tests of jobs ask


@dataclass(frozen=True, slots=True)
class OwnedResources:
    """What tenant ``demo``'s user ``ada`` owns. The names are hers alone."""

    index: str
    document: str
    session: str
    upload: str
    request: str

    def path(self, route: Route) -> str:
        owned = {"session_id": self.session, "index_id": self.index, "doc_id": self.document, "upload_id": self.upload}
        owned |= {"request_id": self.request, "job_id": NO_JOB}
        return route.path.format_map({"name": "concise-de", "model": "llama-4-scout", "file": "x.css", **owned})


def who(tenant: str, user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {tenant}-token", "SPASS-User-Id": user}


@pytest.fixture
async def owned(client: httpx.AsyncClient) -> OwnedResources:
    unique = secrets.token_hex(4)
    index, document = f"index-{unique}", f"doc-{unique}"
    owner = who("demo", "ada")
    body = {"documents": [{"id": document, "text": f"{SECRET} ist ein Berg.", "metadata": {"secret": SECRET}}]}
    (await client.post(f"/a1/rag/indices/{index}/documents", json=body, headers=owner)).raise_for_status()
    created = await client.post("/a1/agents/concise-de/sessions", json={"title": SECRET}, headers=owner)
    assert created.status_code == 201
    file = {"filename": f"{SECRET}.md", "content_type": "text/markdown", "size": 10}
    upload = await client.post(f"/a1/rag/indices/{index}/uploads", json=file, headers=owner)
    assert upload.status_code == 200
    asked = await client.post(f"/a1/rag/indices/{index}/query", json={"query": SECRET}, headers=owner)
    return OwnedResources(index, document, created.json()["id"], upload.json()["upload_id"], asked.headers["SPASS-Request-Id"])


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
    "tenant.config_put": {"memory": "Etwas anderes."},
    "chat.completions": {"model": "llama-4-scout", "messages": [{"role": "user", "content": "Was ist das?"}]},
    "embeddings.create": {"model": "all-minilm-l6-v2", "input": "Berg"},
    "tools.execute": {"name": "rag_query", "arguments": {"index_id": "nowhere", "query": "Berg"}},
}
# What names somebody's thing: the answer to a stranger is that there is no such thing.
NAMING = {
    "{session_id}": "session_not_found",
    "{upload_id}": "upload_not_found",
    "{index_id}": "index_not_found",
    "{request_id}": "request_not_found",
    "{job_id}": "job_not_found",
}
# These create or empty an index of the caller's own under the name, or say that there was none; files may come before an index.
OWN = {"rag.replace", "rag.append", "rag.delete", "rag.documents_delete", "rag.uploads_create", "rag.uploads_list"}


def naming(route: Route) -> str | None:
    return next((code for name, code in NAMING.items() if name in route.path), None)


async def call(client: httpx.AsyncClient, route: Route, owned: OwnedResources, headers: dict[str, str]) -> httpx.Response:
    body = BODIES.get(route.module)
    if route.method in ("POST", "PUT", "PATCH"):
        assert body is not None, f"{route.module} is new here: say what to send to it"
    return await client.request(route.method, owned.path(route), json=body, headers=headers)


@pytest.mark.parametrize("tenant", ["other", "demo-2"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_another_tenant_finds_nothing(client: httpx.AsyncClient, owned: OwnedResources, route: Route, tenant: str) -> None:
    before = await kept(client)
    answer = await call(client, route, owned, who(tenant, "ada"))
    assert SECRET not in answer.text
    assert owned.session not in answer.text
    if route.module == "rag.list":
        assert owned.index not in answer.text
    if route.module == "rag.uploads_list":
        assert answer.json()["uploads"] == []
    code = naming(route)
    if code and route.module not in OWN:
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["code"] == code
    await assert_untouched(client, owned)
    assert await kept(client) == before


# Indices belong to the tenant: all its users share them.
USERS_OWN = [route for route in ROUTES if not route.path.startswith("/a1/rag")]


@pytest.mark.parametrize("route", USERS_OWN, ids=lambda route: f"{route.method} {route.path}")
async def test_another_user_of_the_tenant_finds_no_session(
    client: httpx.AsyncClient, owned: OwnedResources, route: Route
) -> None:
    answer = await call(client, route, owned, who("demo", "bob"))
    assert SECRET not in answer.text
    assert owned.session not in answer.text
    if "{session_id}" in route.path:
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["code"] == "session_not_found"
    await assert_untouched(client, owned)


async def test_a_strangers_answer_is_that_of_an_absent_thing(client: httpx.AsyncClient, owned: OwnedResources) -> None:
    """Status, code and text do not tell "not yours" from "not there"."""
    absent = OwnedResources("no-such-index", "no-such-doc", "ses_" + "0" * 26, "upl_" + "0" * 26, "req_" + "0" * 26)
    for route in ROUTES:
        if naming(route) is None or route.module in OWN:
            continue
        foreign = await call(client, route, owned, who("demo-2", "ada"))
        missing = await call(client, route, absent, who("demo-2", "ada"))
        said = [
            json.dumps(answer.json()["error"])
            .replace(owned.index, "X")
            .replace(owned.document, "Y")
            .replace(owned.session, "Z")
            .replace(owned.upload, "U")
            for answer in (foreign, missing)
        ]
        other = said[1].replace(absent.index, "X").replace(absent.document, "Y").replace(absent.session, "Z")
        other = other.replace(absent.upload, "U")
        assert (foreign.status_code, said[0]) == (missing.status_code, other), route.path


async def test_a_cursor_of_another_tenant_is_useless(client: httpx.AsyncClient, owned: OwnedResources) -> None:
    owner = who("demo", "ada")
    (await client.post("/a1/agents/concise-de/sessions", json={}, headers=owner)).raise_for_status()
    page = await client.get("/a1/agents/concise-de/sessions", params={"limit": 1}, headers=owner)
    cursor = page.json()["next_cursor"]
    assert cursor
    for stranger in (who("demo-2", "ada"), who("demo", "bob")):
        answer = await client.get("/a1/agents/concise-de/sessions", params={"cursor": cursor}, headers=stranger)
        assert answer.status_code == 400


async def test_one_idempotency_key_in_two_hands_is_two_keys(client: httpx.AsyncClient, owned: OwnedResources) -> None:
    key = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"title": SECRET}
    first = await client.post("/a1/agents/concise-de/sessions", json=body, headers=who("demo", "ada") | key)
    again = await client.post("/a1/agents/concise-de/sessions", json=body, headers=who("demo", "ada") | key)
    assert again.json() == first.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    for stranger in (who("demo-2", "ada"), who("demo", "bob"), who("other", "ada")):
        answer = await client.post("/a1/agents/concise-de/sessions", json=body, headers=stranger | key)
        assert answer.status_code == 201
        assert "Idempotency-Replayed" not in answer.headers
        assert answer.json()["id"] != first.json()["id"]


async def kept(client: httpx.AsyncClient) -> tuple[object, object]:
    """The owner's settings, and what was counted of the owner's calls."""
    answers = [await client.get(path, headers=who("demo", "ada")) for path in ("/v1/tenant/config", "/v1/usage")]
    settings, usage = [answer.raise_for_status().json() for answer in answers]
    assert usage["total"]["requests"] > 0
    return settings, usage


async def assert_untouched(client: httpx.AsyncClient, owned: OwnedResources) -> None:
    owner = who("demo", "ada")
    document = await client.get(f"/a1/rag/indices/{owned.index}/documents/{owned.document}", headers=owner)
    assert document.json()["metadata"] == {"secret": SECRET}
    index = await client.get(f"/a1/rag/indices/{owned.index}", headers=owner)
    assert (index.json()["doc_count"], index.json()["version"]) == (1, 1)
    session = await client.get(f"/a1/agents/concise-de/sessions/{owned.session}", headers=owner)
    assert session.status_code == 200
    assert session.json()["message_count"] == 0
