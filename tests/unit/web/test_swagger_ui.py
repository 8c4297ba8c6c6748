"""The page at /docs loads files only from the gateway, and its policy allows these files."""

import base64
import hashlib
import re

import httpx
import pytest

from functions.meta.docs import router as docs
from functions.meta.docs_file import router as docs_file
from spass.core.paging import event_bytes
from spass.web.app import create_app
from spass.web.services import Services

pytestmark = pytest.mark.anyio

MAX_EVENT_BYTES = 6 * 1024 * 1024


@pytest.fixture
def browser(services: Services) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app([docs, docs_file], services), root_path="/prod")
    return httpx.AsyncClient(transport=transport, base_url="http://gateway/prod")


async def test_the_page_loads_only_files_that_the_gateway_serves(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "//" not in page.text
    assert 'data-openapi="/prod/openapi.json"' in page.text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    files = [address for address in addresses if not address.startswith("data:")]
    assert {file.partition("?")[0] for file in files} == {"/prod/docs/swagger-ui.css", "/prod/docs/swagger-ui-bundle.js"}
    for file in files:
        answer = await browser.get(f"http://gateway{file}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] in {"text/css; charset=utf-8", "text/javascript; charset=utf-8"}
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert hashlib.sha256(answer.content).hexdigest().startswith(file.partition("?v=")[2])
        assert event_bytes(answer.content) < MAX_EVENT_BYTES / 2


async def test_the_policy_allows_the_gateways_files_and_the_inline_script(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/docs")
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == f"'self' 'sha256-{digest}'"
    assert policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert not re.search(r"\son\w+=", page.text), "the policy forbids scripts in attributes"


@pytest.mark.parametrize("name", ["LICENSE", "swagger-ui-bundle.js.map", "..", "index.html", "%2e%2e"])
async def test_other_files_are_not_served(browser: httpx.AsyncClient, name: str) -> None:
    answer = await browser.get(f"/docs/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    assert answer.json()["error"]["code"] == "route_not_found"
