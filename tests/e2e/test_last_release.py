"""Test going back: the last release reads the data that this one stored, and this one reads what the last one wrote since.

The last release runs from an archive of its commit, on the state of a gateway of this commit.
"""

import importlib.util
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from infra.rehearsal.assemblies import FIRST_KEPT
from infra.routes import ROUTES
from local.home import ROOT
from tests.e2e.conftest import Gateway, wait_until
from tests.e2e.upload_client import has_ended, put, upload
from tests.sampling import SOAK
from tests.stream_grammar import of_type, parse_events

pytestmark = pytest.mark.skipif(not SOAK, reason="it starts three gateways: make soak")

SESSIONS: Final = "/a1/agents/concise-de/sessions"
CHAT: Final = "/c1/agents/dir-devsecops/chat"
AGENTS: Final = "/v1/managed-agents"
DOCUMENTS: Final = [{"id": f"d{number}", "text": f"Dokument {number}", "metadata": {"n": number}} for number in range(30)]
LINES: Final = b"".join(b'{"id": "l%d", "text": "Zeile %d", "metadata": {}}\n' % (number, number) for number in range(40))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the last release's code. It is not in the repository, so its history must be here."""
    archive = subprocess.run(["git", "archive", FIRST_KEPT], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.fail(f"This checkout has no commit {FIRST_KEPT}, the last release. Run: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("last-release")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def ok(answer: httpx.Response) -> httpx.Response:
    assert answer.is_success, f"{answer.request.url}: {answer.text}"
    return answer


class History:
    """Stored data of each kind, and the paths that read it."""

    def __init__(self, client: httpx.Client) -> None:
        self.paths = ["/v1/tools", "/v1/tenant/config"]
        self.streams: list[str] = []
        self._add_index(client)
        self._add_session(client)
        self._add_chat(client)
        self._add_agent(client)
        self.told = self.read(client)

    def _add_index(self, client: httpx.Client) -> None:
        index = "/a1/rag/indices/notes"
        ok(client.post(f"{index}/documents", json={"documents": DOCUMENTS}))
        ok(client.delete(f"{index}/documents/d3"))
        ok(client.patch(f"{index}/documents/d4", json={"metadata": {"changed": True}}))
        upload_id, _ = put(client, "lines", "lines.jsonl", LINES)
        assert upload(client, "lines", upload_id, has_ended)["status"] == "succeeded"
        self.paths += ["/a1/rag/indices", index, f"{index}/documents?limit=100", f"{index}/documents/d4"]
        self.paths += ["/a1/rag/indices/lines/documents?limit=100", f"/a1/rag/indices/lines/uploads/{upload_id}"]

    def _add_session(self, client: httpx.Client) -> None:
        options = {"title": "old", "compact_strategy": "manual", "compact_keep_last_n": 0}
        self.session = f"{SESSIONS}/{ok(client.post(SESSIONS, json=options)).json()['id']}"
        for sport in ("Tennis", "Rudern"):
            answer = client.post(f"{self.session}/messages", json={"message": f"Mein Lieblingssport ist {sport}."})
            self.paths.append(f"/v1/audit/{ok(answer).headers['SPASS-Request-Id']}")
        compacted = ok(client.post(f"{self.session}/compact")).json()
        self.successor = f"{SESSIONS}/{compacted['successor_session_id']}"
        for session in (self.session, self.successor):
            self.paths += [session, f"{session}/messages", f"{session}/lineage"]
        self.paths.append(SESSIONS)

    def _add_chat(self, client: httpx.Client) -> None:
        body = {"message_id": "m-1", "session_id": "infra", "messages": [{"role": "user", "content": "Create infra/main.tf"}]}
        events = parse_events(ok(client.post(CHAT, json=body)).text)
        (waiting,) = of_type(events, "approval")
        self.approval = f"/a1/approvals/{waiting['approval']['id']}"
        self.streams.append(f"{CHAT}/m-1")
        self.paths += [self.approval, "/a1/approvals", f"{self.approval}/changes"]
        self.paths += [f"/a1/workspaces/default{what}" for what in ("", "/versions", "/tree", "/diff")]

    def _add_agent(self, client: httpx.Client) -> None:
        body = {"name": "daily", "agent": "concise-de", "schedule": {"expression": "rate(1 day)", "input": "Guten Morgen"}}
        self.agent = f"{AGENTS}/{ok(client.post(AGENTS, json=body)).json()['id']}"
        started = ok(client.post(f"{self.agent}/run", json={"input": "Was ist 2+2?"})).json()
        run = f"{self.agent}/runs/{started['id']}"
        wait_until(lambda: client.get(run).json()["status"] == "succeeded")
        self.paths += [AGENTS, self.agent, f"{self.agent}/runs", run, f"{self.agent}/messages"]

    def read(self, client: httpx.Client) -> dict[str, object]:
        """Return the answer of each path."""
        told: dict[str, object] = {path: ok(client.get(path)).json() for path in self.paths}
        return told | {path: ok(client.get(path)).text for path in self.streams}

    def go_on(self, client: httpx.Client, mark: str) -> None:
        """Continue everything that was stored."""
        ok(client.post(f"{self.successor}/messages", json={"message": f"Merke dir {mark}."}))
        ok(client.post("/a1/rag/indices/notes/documents/append", json={"documents": [{**DOCUMENTS[0], "id": mark}]}))
        found = ok(client.post("/a1/rag/indices/notes/query", json={"query": "Dokument 7", "top_k": 40})).json()
        assert {"d7", mark} <= {hit["id"] for hit in found["results"]}
        started = ok(client.post(f"{self.agent}/run", json={"input": mark})).json()
        wait_until(lambda: client.get(f"{self.agent}/runs/{started['id']}").json()["status"] == "succeeded")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[tuple[Gateway, History]]:
    """Return a gateway of this commit that has stopped, and what it has stored."""
    gateway = Gateway(tmp_path / "home")
    try:
        gateway.start()
        with gateway.client() as client:
            history = History(client)
        assert gateway.stop() == 0
        yield gateway, history
    finally:
        if gateway.process is not None and gateway.process.poll() is None:
            gateway.stop()


def test_the_last_release_reads_and_continues_what_this_one_stored(history: tuple[Gateway, History], sources: Path) -> None:
    gateway, stored = history
    gateway.root = sources
    gateway.start()
    with gateway.client() as client:
        for path, told in stored.read(client).items():
            assert _without_news(stored.told[path], told) == told, path
        stored.go_on(client, "alt")
        after = stored.read(client)
    assert gateway.stop() == 0

    gateway.root = ROOT
    gateway.start()
    with gateway.client() as client:
        for path, told in stored.read(client).items():
            assert _without_news(told, after[path]) == after[path], path
        stored.go_on(client, "neu")
        assert ok(client.post(stored.approval, json={"decision": "approve"})).json()["status"] == "executed"
    assert "worker_failed" not in gateway.output


def _without_news(now: object, then: object) -> object:
    """Return an answer of this release without the fields that the last one does not know."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {key: _without_news(value, then[key]) for key, value in now.items() if key in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [_without_news(*pair) for pair in zip(now, then, strict=True)]
    return now


def test_a_route_of_another_kind_keeps_its_function_for_one_release(sources: Path) -> None:
    last: dict[tuple[str, str], Any] = {(row.method, row.path): row for row in _rows(sources)}
    changed = {(row.method, row.path): row for row in ROUTES if (row.method, row.path) in last}
    for key, row in changed.items():
        expected = last[key].function_name if last[key].long != row.long else None
        assert row.retired == expected, f"{key}: write retired={expected!r} into its row"


def _rows(sources: Path) -> Any:
    spec = importlib.util.spec_from_file_location("last_routes", sources / "infra" / "routes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.ROUTES
