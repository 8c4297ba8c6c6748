"""Build a scripted model behind the real router, and a store in memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from spass.calls.admission import Admission
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.ids import RequestId, TenantId, UserId
from spass.core.messages import TokenUsage
from spass.models.errors import BackendUnavailable
from spass.models.router import Router
from spass.models.types import ChatDelta, EmbeddingReply, EmbeddingRequest, pack_rows
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.testing.model import Answer, Script, ScriptedModel

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


HELLO: Final = (ChatDelta("Hello."),)


def scripted_model(script: Answer | Script = HELLO, **fields: Any) -> ScriptedModel:
    """Return a model that answers with ``script`` and returns vectors with three dimensions."""
    return ScriptedModel(script, **{"vectors": vectors_of(2), **fields})


def vectors_of(tokens: int) -> Callable[[EmbeddingRequest], EmbeddingReply]:
    """Return a function that returns the length of each text as its vector, and a usage of ``tokens``."""

    def embed(request: EmbeddingRequest) -> EmbeddingReply:
        rows = [(float(len(text)), 1.0, 0.5) for text in request.texts]
        return EmbeddingReply(pack_rows(rows), len(rows), 3, TokenUsage(tokens * len(rows)))

    return embed


def failing_second_embedding() -> ScriptedModel:
    """Return a model whose second request for embeddings fails."""
    model = scripted_model()

    def fail_second(request: EmbeddingRequest) -> EmbeddingReply:
        if len(model.embeddings) == 2:
            raise BackendUnavailable("down")
        return vectors_of(2)(request)

    model.vectors = fail_second
    return model


def calls_of(model: ScriptedModel, config: GatewayConfig = CONFIG, admission: Admission | None = None) -> Calls:
    """Return the pipeline in front of ``model``."""
    router = Router(config.llm, config.models, lambda _: None, provider_of=lambda *_: model)
    return Calls(config, router, Cascade(config), admission=admission)


def memory_store(tenant: TenantId) -> TenantStore:
    """Return a store in memory."""
    return MemoryAws().for_tenant(tenant)


def make_scope(store: TenantStore, *, allowed: Sequence[str] = ("*",), depth: int = 0, admin: bool = False) -> Scope:
    caller = Caller(
        identity=Identity(store.tenant, "token-1", admin=admin, allowed_models=tuple(allowed)),
        user=UserId("anna"),
        request_id=RequestId("req_outer"),
        parent_request_id=RequestId("req_elsewhere"),
        depth=depth,
        route="/v1/chat/completions",
    )
    return Scope.for_request(caller, store)


def at_depth(scope: Scope, depth: int) -> Scope:
    return replace(scope, depth=depth)


async def audit_of(store: TenantStore) -> list[Item]:
    """Return the audit records of the request of ``make_scope``."""
    return await store.table.query(keys.audit_partition(store.tenant, RequestId("req_outer")))
