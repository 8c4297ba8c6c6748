"""Fixtures for the whole gateway in this process, on an emulated AWS, with tenants of similar names."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from local.server import routers
from spass.aws.clients import Aws
from spass.web.app import create_app
from spass.web.services import Services, Settings
from tests.integration.web.retrying_client import Clock

ROOT = Path(__file__).resolve().parents[3]
TENANTS = ("demo", "demo-2", "other")


@pytest.fixture
def services(aws: Aws, tmp_path: Path) -> Services:
    """Configure the tenants ``demo``, ``demo-2`` and ``other``, each with the token ``<tenant>-token``.

    Only the embedding model has a backend.
    """
    tenants = "".join(
        f"""
  - id: {tenant}
    tokens:
      - {{id: {tenant}, sha256: {hashlib.sha256(f"{tenant}-token".encode()).hexdigest()}, admin: true, allowed_models: ["*"]}}"""
        for tenant in TENANTS
    )
    (tmp_path / "gateway.yaml").write_text(
        f"""
llm:
  strategy: failover
  backends: [{{name: embedded, provider: embedded}}]
models:
  - {{name: llama-4-scout, context_window: 128000}}
  - {{name: claude-opus-4.7, context_window: 200000}}
  - {{name: "ollama/qwen2.5-coder:7b-instruct", context_window: 32768}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{embedding_model: all-minilm-l6-v2, compact_summary_model: llama-4-scout}}
usd_to_eur: 0.92
tenants:{tenants}
"""
    )
    services = Services(Settings(config=tmp_path / "gateway.yaml", agents=ROOT / "agents", table="spass", bucket="spass"))
    services.aws = aws
    return services


@pytest.fixture
def app(services: Services) -> FastAPI:
    return create_app(routers(), services)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("spass.store.idempotency.now_s", clock)
    return clock
