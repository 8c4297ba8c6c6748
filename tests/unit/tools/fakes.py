"""A scope whose store remembers what is written, and knowledge that needs no vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.job_targets import NO_JOB_TARGETS
from spass.aws.jobs import TenantJobs
from spass.aws.keys import Key
from spass.aws.objects import TenantObjects
from spass.aws.swap import Participant
from spass.aws.table import TenantTable, Write
from spass.aws.uploads import TenantUploads
from spass.aws.writes import Put
from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound, StorageUnavailable
from spass.core.ids import DocumentId, IndexId, RequestId, TenantId, UserId
from spass.rag.index.answers import Document, DocumentPage, Hit, IndexPage, IndexSummary, QueryAnswer, WriteAnswer
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.index.precondition import IfMatch, View
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.settings import Cascade
from spass.tools.base import KnowledgeEditor, ToolContext


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


class ReadOnlyKnowledge:
    """A library that lets nobody curate it."""

    async def list(self, scope: Scope, cursor: str | None = None, limit: int = 100) -> IndexPage:
        raise read_only_knowledge()

    async def describe(self, scope: Scope, index_id: IndexId) -> IndexSummary:
        raise read_only_knowledge()

    async def documents(self, scope: Scope, index_id: IndexId, cursor: str | None = None, limit: int = 100) -> DocumentPage:
        raise read_only_knowledge()

    async def document(self, scope: Scope, index_id: IndexId, document_id: DocumentId) -> Document:
        raise read_only_knowledge()

    async def check_may_embed(self, scope: Scope) -> None:
        raise read_only_knowledge()

    async def existing_ids(self, scope: Scope, index_id: IndexId, ids: Sequence[DocumentId]) -> Sequence[DocumentId]:
        raise read_only_knowledge()

    async def entity_tag(self, scope: Scope, index_id: IndexId, view: View) -> str:
        raise read_only_knowledge()

    def if_match(self, view: View, tag: str) -> IfMatch:
        raise read_only_knowledge()

    async def replace(
        self,
        scope: Scope,
        index_id: IndexId,
        documents: Sequence[NewDocument],
        participant: Participant[WriteAnswer] | None = None,
        if_match: IfMatch | None = None,
    ) -> WriteAnswer:
        raise read_only_knowledge()

    async def append(
        self,
        scope: Scope,
        index_id: IndexId,
        documents: Sequence[NewDocument],
        participant: Participant[WriteAnswer] | None = None,
        if_match: IfMatch | None = None,
    ) -> WriteAnswer:
        raise read_only_knowledge()

    async def patch(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        patch: DocumentPatch,
        participant: Participant[Document] | None = None,
        if_match: IfMatch | None = None,
    ) -> Document:
        raise read_only_knowledge()

    async def delete_document(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        participant: Participant[bool] | None = None,
        if_match: IfMatch | None = None,
    ) -> bool:
        raise read_only_knowledge()

    async def delete_index(
        self, scope: Scope, index_id: IndexId, participant: Participant[bool] | None = None, if_match: IfMatch | None = None
    ) -> bool:
        raise read_only_knowledge()


def read_only_knowledge() -> AssertionError:
    return AssertionError("nothing here curates knowledge")


@dataclass(slots=True)
class FakeKnowledge(ReadOnlyKnowledge):
    """Knowledge of several tenants: texts by (tenant, index). Every text of an index answers every question."""

    texts: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    asked: list[tuple[str, str, str, int]] = field(default_factory=list)

    async def query(self, scope: Scope, index_id: IndexId, query: str, top_k: int) -> QueryAnswer:
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

    async def retrieve(self, scope: Scope, index_id: IndexId, query: str, top_k: int) -> Sequence[Hit]:
        try:
            return (await self.query(scope, index_id, query, top_k)).results
        except IndexNotFound:
            return ()


def context_for(rag: KnowledgeEditor | None = None) -> ToolContext:
    """What a tool acts with in a call for the tenant ``demo``."""
    return ToolContext(scope_for(), rag or FakeKnowledge(), Cascade(GatewayConfig()))
