"""Upload files as a client does, and read their progress."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

SECONDS = 240.0
STATUSES = ("waiting", "queued", "running", "succeeded", "failed")


def put(client: httpx.Client, index: str, filename: str, content: bytes) -> tuple[str, Mapping[str, Any]]:
    """Upload a file as a browser does, and return its id and its form. The form is the permission: it needs no token."""
    body = {"filename": filename, "content_type": "application/octet-stream", "size": len(content)}
    form = client.post(f"/a1/rag/indices/{index}/uploads", json=body).raise_for_status().json()
    files = {"file": (filename, content)}
    httpx.post(form["url"], data=form["fields"], files=files, timeout=60, trust_env=False).raise_for_status()
    return form["upload_id"], form


def upload(client: httpx.Client, index: str, upload: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Poll the upload until ``until(state)`` is true, and return that state. Its status must not go back."""
    deadline, pause, reached = time.monotonic() + SECONDS, 0.1, 0
    while True:
        state: dict[str, Any] = client.get(f"/a1/rag/indices/{index}/uploads/{upload}").raise_for_status().json()
        assert STATUSES.index(state["status"]) >= reached, state
        reached = STATUSES.index(state["status"])
        if until(state):
            return state
        assert time.monotonic() < deadline, f"the upload stays {state}"
        time.sleep(pause)
        pause = min(1.0, pause * 1.1)


def has_ended(state: Mapping[str, Any]) -> bool:
    return state["status"] in ("succeeded", "failed")


def documents(client: httpx.Client, index: str) -> list[str]:
    """Return the ids of all documents."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = client.get(f"/a1/rag/indices/{index}/documents", params={"cursor": cursor} if cursor else {}).json()
        ids += [document["id"] for document in page["documents"]]
        cursor = page["next_cursor"]
        if not cursor:
            return ids
