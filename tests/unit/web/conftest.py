"""An app with a small gateway file, served in process."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter
from starlette.responses import Response

from spass.core.errors import InvalidRequest
from spass.core.messages import Json
from spass.web.app import create_app
from spass.web.bodies import RawBody, json_response
from spass.web.exchange import CurrentExchange
from spass.web.public_routing import public_router
from spass.web.routing import AgentParameter, ArchiveRoute, FileRoute, IndexParameter, Pagination, SessionParameter, api_router
from spass.web.services import Services, Settings

TOKEN = "demo-token"

CONFIG = f"""
llm: {{backends: [{{provider: anthropic}}, {{name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}}]}}
models:
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
tenants:
  - id: demo
    tokens: [{{id: demo-user, sha256: {hashlib.sha256(TOKEN.encode()).hexdigest()}, allowed_models: ["*"]}}]
"""


@pytest.fixture(autouse=True)
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def services(tmp_path: Path) -> Services:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG)
    return Services(Settings(config=config, agents=tmp_path, table="spass", bucket="spass"))


def routes() -> list[APIRouter]:
    """Return routes that answer with what they received."""
    public, v1, a1 = public_router(), api_router(), api_router()
    files, archives = api_router(FileRoute), api_router(ArchiveRoute)

    @public.get("/healthz")
    async def health() -> Response:
        return json_response({"status": "ok"})

    @public.get("/broken")
    async def broken() -> Response:
        raise KeyError("secret text")

    @v1.post("/v1/echo")
    async def echo(exchange: CurrentExchange, body: dict[str, object]) -> Response:
        caller = exchange.scope.caller
        received: dict[str, Json] = {
            "user": caller.user,
            "depth": caller.depth,
            "parent": caller.parent_request_id,
            "route": caller.route,
            "idempotent": exchange.idempotency.digest if exchange.idempotency else None,
        }
        return json_response({**received, "keys": [*body]})

    @v1.post("/v1/shades")
    async def shades(body: dict[str, object], shade: str | None = None) -> Response:
        raise InvalidRequest("There is no such shade.", param="limit" if shade is None else "shade")

    @v1.get("/v1/pages")
    async def pages(page: Pagination) -> Response:
        return json_response({"limit": page.limit, "cursor": page.cursor})

    @a1.get("/a1/agents/{name}/sessions/{session_id}")
    async def session(name: AgentParameter, session_id: SessionParameter, exchange: CurrentExchange) -> Response:
        return json_response({"name": name, "session": session_id, "user": exchange.scope.caller.user})

    @a1.delete("/a1/agents/{name}/sessions/{session_id}")
    async def delete(name: AgentParameter, session_id: SessionParameter) -> Response:
        return json_response({"deleted": True})

    @a1.get("/a1/rag/indices/{index_id}")
    async def index(index_id: IndexParameter) -> Response:
        return json_response({"index": index_id})

    @a1.post("/a1/echo")
    async def echo_user(body: dict[str, object]) -> Response:
        return json_response({"keys": [*body]})

    @files.put("/a1/file")
    async def put_file(body: RawBody) -> Response:
        return Response(body)

    @archives.put("/a1/archive")
    async def put_archive(body: RawBody) -> Response:
        return json_response({"size": len(body)})

    return [public, v1, a1, files, archives]


@pytest.fixture
async def client(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(routes(), services))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://gateway", headers={"Authorization": f"Bearer {TOKEN}"}
    ) as client:
        yield client


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()
