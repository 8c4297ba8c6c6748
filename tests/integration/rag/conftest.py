"""A harness for rag on the emulator, with vectors that are computed from the bytes of the texts."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

from functions.rag.append import append_documents
from functions.rag.replace import replace_documents
from spass.calls.scope import Scope
from spass.core.ids import IndexId
from spass.core.messages import TokenUsage
from spass.limits.places import PlaceKind
from spass.models.types import EmbeddingReply, pack_rows
from spass.rag.index.cache import ObjectCache
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import NewDocument, WriteRequest
from spass.store.idempotency import StoredResponse
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig
from spass.testing.rag import build_rag
from spass.tools.base import Rag
from spass.web.exchange import Exchange
from spass.web.services import Services, Settings
from tests.unit.idempotent_requests import idempotent_request
from tests.unit.scopes import scope_of

DIMENSIONS = 4
Verb = Literal["append", "replace"]
ROUTES: Final = {"append": append_documents, "replace": replace_documents}


class ArithmeticCalls:
    """Embedding calls that compute a vector from the bytes of each text."""

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        rows = [[float(sum(text.encode()) // 5**n % 5) - 2.0 for n in range(DIMENSIONS)] for text in texts]
        return EmbeddingReply(pack_rows(rows), len(texts), DIMENSIONS, TokenUsage())


CONFIG = GatewayConfig.model_validate(
    {
        "llm": {"backends": [{"provider": "embedded"}]},
        "models": [{"name": "arithmetic", "kind": "embedding", "dimensions": DIMENSIONS, "context_window": 256}],
        "defaults": {"embedding_model": "arithmetic"},
        "usd_to_eur": "0.9",
        "tenants": [],
    }
)


class ExchangeWithoutPlace(Exchange):
    """A request that takes no place of its tenant: ``tests/functions/test_bounds.py`` is about places."""

    async def take_place(self, kind: PlaceKind) -> None:
        pass


@dataclass(slots=True)
class RagHarness:
    """One tenant's store. Each ``worker()`` has its own, empty cache."""

    store: TenantStore

    def worker(self) -> Rag:
        return build_rag(ArithmeticCalls(), CONFIG, ObjectCache())

    def scope(self, *, admin: bool = False) -> Scope:
        return scope_of(self.store, None, admin=admin, models=(), route="/a1/rag")

    async def write(self, verb: Verb, index: IndexId, documents: Sequence[NewDocument], key: str) -> StoredResponse:
        """Send a request with an Idempotency-Key to its route, on a new worker."""
        services = Services(Settings(config=Path(), agents=Path(), table="", bucket=""))
        services.writer = self.worker().writer
        exchange = ExchangeWithoutPlace()
        exchange.enter(self.scope(), services)
        body = hashlib.sha256(repr(documents).encode()).hexdigest()
        exchange.idempotency = idempotent_request(hashlib.sha256(key.encode()).hexdigest(), body)
        response = await ROUTES[verb](index, WriteRequest(documents=list(documents)), exchange)
        return StoredResponse(json.loads(bytes(response.body)), response.headers)

    async def texts(self, index: IndexId) -> dict[str, str]:
        """Return all texts by document id from a new worker, and check the summary of the index."""
        rag = self.worker()
        page = await rag.reader.documents(self.scope(), index, None, 1000)
        assert page.next_cursor is None
        texts = {str(document.id): document.text for document in page.documents}
        assert len(texts) == len(page.documents)
        summary = await describe_index(self.scope(), index)
        assert summary.doc_count == len(texts)
        assert summary.total_text_bytes == sum(len(text.encode()) for text in texts.values())
        return texts


def documents(*pairs: tuple[str, str]) -> list[NewDocument]:
    return [NewDocument(id=name, text=text) for name, text in pairs]


@pytest.fixture
def harness(store: TenantStore) -> RagHarness:
    return RagHarness(store)
