"""A scope whose store remembers what is written, and knowledge that needs no vectors."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.job_targets import NO_JOB_TARGETS
from spass.aws.jobs import TenantJobs
from spass.aws.keys import Key
from spass.aws.objects import TenantObjects
from spass.aws.table import TenantTable
from spass.aws.uploads import TenantUploads
from spass.aws.writes import Put, Write
from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound, StorageUnavailable
from spass.core.ids import DocumentId, IndexId, RequestId, TenantId, UserId
from spass.llm.types import EmbeddingReply
from spass.rag.index.answers import Hit, QueryAnswer
from spass.rag.index.cache import ObjectCache
from spass.rag.index.catalog import IndexCatalog
from spass.rag.index.embedding import Embedder
from spass.rag.index.embedding_model import EmbeddingModel
from spass.rag.index.filters import Filter
from spass.rag.search.reader import Reader
from spass.rag.write.delete import IndexDeleter
from spass.rag.write.patch import Patcher
from spass.rag.write.writer import Writer
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.settings import Cascade
from spass.tools.base import Rag, ToolContext


def no_bucket() -> NoReturn:
    raise AssertionError("nothing here reads or writes objects")


class RecordingTable(TenantTable):
    """Keeps what is put. ``broken`` makes every write fail."""

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.written: list[Put] = []
        self.broken = False

    async def write(self, write: Write) -> Item | None:
        if self.broken:
            raise StorageUnavailable("The store does not answer.")
        assert isinstance(write, Put)
        self.written.append(write)
        return None

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        return None

    async def transact(self, writes: Sequence[Write], *, token: str) -> None:
        for write in writes:
            if isinstance(write, Put):
                await self.write(write)

    def audited(self, kind: str) -> list[tuple[object, object]]:
        """(tool or model, status) of each record of ``kind``, in order."""
        records = [put.attributes for put in self.written if put.attributes["kind"] == kind]
        return [(record.get("tool") or record.get("model"), record["status"]) for record in records]


def table_of(scope: Scope) -> RecordingTable:
    assert isinstance(scope.store.table, RecordingTable)
    return scope.store.table


def scope_for(
    tenant: str = "demo", *, models: Sequence[str] = ("*",), depth: int = 0, seconds: float = 60.0, admin: bool = False
) -> Scope:
    name = TenantId(tenant)
    identity = Identity(name, "token-1", admin=admin, allowed_models=tuple(models))
    caller = Caller(identity, UserId("u1"), RequestId("req_outer"), None, depth, "/a1/agents/{name}/chat")
    store = TenantStore(
        name,
        RecordingTable(name),
        TenantObjects(no_bucket, "bucket", name),
        TenantUploads(no_bucket, "bucket", name, no_bucket),
        TenantJobs(no_bucket, no_bucket, NO_JOB_TARGETS, name),
    )
    return Scope.for_request(caller, store, seconds=seconds)


class NoEmbeddings:
    """Embeds nothing: no test that uses it may ask for a vector."""

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        raise AssertionError("nothing here embeds")


class FakeReader(Reader):
    """Answers from texts of several tenants, by (tenant, index). Every text of an index answers every question."""

    def __init__(self, texts: Mapping[tuple[str, str], Sequence[str]] | None = None) -> None:
        self.texts = texts or {}
        self.asked: list[tuple[str, str, str, int]] = []

    async def query(
        self,
        scope: Scope,
        index_id: IndexId,
        query: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002 (its name on the wire)
        min_score: float | None = None,
    ) -> QueryAnswer:
        tenant = scope.caller.tenant
        self.asked.append((tenant, index_id, query, top_k))
        if (tenant, index_id) not in self.texts:
            raise IndexNotFound(f"There is no index '{index_id}'.")
        found = self.texts[tenant, index_id][:top_k]
        hits = tuple(
            Hit(id=DocumentId(f"d{n}"), text=text, metadata={"source": "shelf"}, score=1 - n / 10)
            for n, text in enumerate(found, 1)
        )
        return QueryAnswer(index_id=index_id, results=hits, version=7)


def rag_with(reader: Reader) -> Rag:
    """Return parts of rag of which only ``reader`` can be used."""
    embedder = Embedder(NoEmbeddings(), EmbeddingModel("none", 1))
    cache = ObjectCache(0)
    return Rag(embedder, IndexCatalog(), reader, Writer(embedder, cache), Patcher(embedder, cache), IndexDeleter(cache))


def context_for(reader: Reader | None = None) -> ToolContext:
    """What a tool acts with in a call for the tenant ``demo``."""
    return ToolContext(scope_for(), rag_with(reader or FakeReader()), Cascade(GatewayConfig()))
