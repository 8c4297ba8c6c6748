"""A model that says what a test wrote for it, behind the real router, and a store in memory."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import boto3
from moto import mock_aws

from spass.aws import keys
from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.calls.admission import Admission
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.ids import RequestId, TenantId, UserId
from spass.core.messages import TokenUsage
from spass.llm.router import Router
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, pack_rows
from spass.tenancy.config import BackendConfig, GatewayConfig
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.settings import Cascade
from tests.simulated.memory import MemoryAws

CONFIG = GatewayConfig.model_validate(
    {
        "llm": {
            "retries": 0,
            "backends": [
                {
                    "name": "scripted",
                    "provider": "ollama",
                    "supported_models": ["small", "large", "unpriced", "mini-embed", "other-embed"],
                }
            ],
        },
        "models": [
            {"name": "small", "context_window": 1000, "usd_per_mtok_in": "0.5", "usd_per_mtok_out": "1.5"},
            {"name": "large", "context_window": 1000, "usd_per_mtok_in": 5, "usd_per_mtok_out": 25},
            {"name": "unpriced", "context_window": 1000},
            {"name": "unserved", "context_window": 1000},
            {"name": "mini-embed", "kind": "embedding", "dimensions": 3, "context_window": 16, "usd_per_mtok_in": "0.1"},
            {"name": "other-embed", "kind": "embedding", "dimensions": 3, "context_window": 16},
        ],
        "defaults": {"embedding_model": "mini-embed"},
        "usd_to_eur": "0.9",
    }
)


@dataclass
class ScriptedProvider:
    """Yields ``deltas``, then raises ``failure`` if there is one. ``sent``: each request reaches the model whole. Remembers what
    it was asked, and whether it was closed."""

    deltas: Sequence[ChatDelta] = (ChatDelta("Hello."),)
    failure: BaseException | None = None
    sent: bool = False
    embedding_tokens: int = 2
    fail_embedding_call: int | None = None
    before_each_request: Callable[[], object] = lambda: None
    before_each: Callable[[], object] = lambda: None
    requests: list[ChatRequest] = field(default_factory=list)
    embeddings: list[EmbeddingRequest] = field(default_factory=list)
    contexts: list[CallContext] = field(default_factory=list)
    closed: int = 0

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        self.requests.append(request)
        self.contexts.append(context)
        context.attempt.sent = self.sent
        self.before_each_request()
        try:
            for delta in self.deltas:
                self.before_each()
                yield delta
            if self.failure is not None:
                raise self.failure
        finally:
            self.closed += 1

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        context.attempt.sent = self.sent
        if self.failure is not None and len(self.embeddings) == (self.fail_embedding_call or 0):
            raise self.failure
        self.embeddings.append(request)
        self.contexts.append(context)
        rows = [(float(len(text)), 1.0, 0.5) for text in request.texts]
        return EmbeddingReply(pack_rows(rows), len(rows), 3, TokenUsage(self.embedding_tokens * len(rows)))

    async def aclose(self) -> None:
        pass

    def calls(self, config: GatewayConfig = CONFIG, admission: Admission | None = None) -> Calls:
        """The pipeline in front of this model."""

        def provider_of(backend: BackendConfig, key: str | None) -> ScriptedProvider:
            return self

        router = Router(config.llm, config.models, lambda _: None, provider_of=provider_of)
        return Calls(config, router, Cascade(config), admission=admission)


def memory_store(tenant: TenantId) -> TenantStore:
    """A table that lives as long as the test."""
    return MemoryAws().for_tenant(tenant)


@contextmanager
def emulated_table() -> Iterator[None]:
    """A table in moto's memory, where a queue may stand beside it."""
    with mock_aws():
        boto3.client("dynamodb").create_table(
            TableName="spass",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
        )
        yield


def make_scope(store: TenantStore, *, allowed: Sequence[str] = ("*",), depth: int = 0, admin: bool = False) -> Scope:
    caller = Caller(
        identity=Identity(store.tenant, "token-1", admin=admin, allowed_models=tuple(allowed)),
        user=UserId("anna"),
        request_id=RequestId("req_outer"),
        parent_request_id=RequestId("req_elsewhere"),
        depth=depth,
        route="/v1/chat/completions",
    )
    return Scope.of(caller, store)


def at_depth(scope: Scope, depth: int) -> Scope:
    return replace(scope, depth=depth)


async def audit_of(store: TenantStore) -> list[Item]:
    """The records below the request of ``make_scope``."""
    return await store.table.query(keys.audit_partition(store.tenant, RequestId("req_outer")))
