"""Send files to an index through a tab, and write documents past it."""

import re
from collections.abc import Mapping

import httpx
from playwright.sync_api import FilePayload, Request

from tests.e2e.conftest import Gateway
from tests.page.tab import Tab

GUIDE = b"# Travel\n\nTrips are paid within 30 days.\n\n# Leave\n\nParents may take a year of leave.\n"
ANIMALS = (
    b"id,text,town\nbees,Bees live in hives.,Berlin\nbroken,this row,has,too many cells\nwhales,Whales live in the sea.,Kiel\n"
)


def bucket_of(gateway: Gateway) -> str:
    policy = httpx.get(f"{gateway.url}/ui", trust_env=False).headers["Content-Security-Policy"]
    found = re.search(r"connect-src 'self' (\S+);", policy)
    assert found
    return found[1]


def file(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def add(tab: Tab, *files: FilePayload) -> None:
    tab.page.get_by_label("Add files").set_input_files(files)


def append(gateway: Gateway, index: str, texts: Mapping[str, str]) -> None:
    documents = [{"id": name, "text": text, "metadata": {"place": "shelf"}} for name, text in texts.items()]
    with gateway.client() as client:
        client.post(f"/a1/rag/indices/{index}/documents/append", json={"documents": documents}).raise_for_status()


def sent_to(tab: Tab, part: str) -> list[Request]:
    """Return the list of requests whose address has ``part``. It grows with each request."""
    requests: list[Request] = []
    tab.page.on("request", lambda request: requests.append(request) if part in request.url else None)
    return requests
