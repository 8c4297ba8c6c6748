"""A scope whose table records writes, and a reader that returns fixed texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from spass.aws.bucket import S3Access, S3Objects, S3Uploads
from spass.aws.job_targets import NO_JOB_TARGETS
from spass.aws.jobs import AwsJobs
from spass.calls.scope import Scope
from spass.core.code_calls import Sandbox
from spass.core.errors import IndexNotFound, StorageUnavailable
from spass.core.ids import DocumentId, IndexId, RequestId, TenantId, UserId
from spass.core.time import now_s
from spass.models.types import EmbeddingReply
from spass.rag.index.cache import ObjectCache
from spass.rag.index.embedding import Embedder
from spass.rag.index.manifest import EmbeddingModel
from spass.rag.index.responses import Hit, QueryAnswer
from spass.rag.search.reader import Reader
from spass.rag.write.delete import IndexDeleter
from spass.rag.write.writer import Writer
from spass.sandbox.launchers import no_sandbox
from spass.store.keys import Key
from spass.store.table import TenantTable
from spass.store.tenant_store import TenantStore
from spass.store.work_line import WorkLine, default_work_bound
from spass.store.writes import Item, Put, Write
from spass.tenancy.config import GatewayConfig, SearchConfig
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.settings import Cascade
from spass.tools.base import Rag, Tool
from spass.tools.builtin.delegate import Delegates
from spass.tools.builtin.lineage_search import LineageSearcher
from spass.tools.chat_models import ChatModels
from spass.tools.editor.protocol import Editor
from spass.tools.search_engine import SearchEngine
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ToolClasses, gateway_toolsets
from spass.workspaces.service import Workspaces


def fail() -> NoReturn:
    raise AssertionError("this test must not use the bucket or a queue")


class RecordingTable(TenantTable):
    """A table that records puts. Every write fails if ``broken`` is true."""

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.written: list[Put] = []
        self.broken = False

    async def write(self, write: Write) -> Item | None:
        if self.broken:
            raise StorageUnavailable("The storage did not answer in time; try again.")
        assert isinstance(write, Put)
        self.written.append(write)
        return None

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        return None

    async def query(self, partition: str, **_: object) -> list[Item]:
        return []

    async def transact(self, writes: Sequence[Write], *, token: str) -> None:
        for write in writes:
            if isinstance(write, Put):
                await self.write(write)

    def audited(self, kind: str) -> list[tuple[object, object]]:
        """Return (tool or model, status) of each record of ``kind``, in order."""
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
    table, jobs = RecordingTable(name), AwsJobs(fail, fail, NO_JOB_TARGETS, name)
    store = TenantStore(
        name,
        table,
        S3Objects(S3Access(fail, fail), "bucket", name),
        S3Uploads(S3Access(fail, fail), "bucket", name),
        jobs,
        WorkLine(name, table, table, jobs, default_work_bound),
    )
    return Scope.for_request(caller, store, seconds=seconds)


class NoEmbeddings:
    """Fails if a test embeds a text."""

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        raise AssertionError("this test must not embed")


class FakeReader(Reader):
    """Answers every query of an index with all of its ``texts``, by (tenant, index)."""

    def __init__(self, texts: Mapping[tuple[str, str], Sequence[str]] | None = None) -> None:
        self.texts = texts or {}
        self.queries: list[tuple[str, str, str, int]] = []

    async def query(self, scope: Scope, index_id: IndexId, query: str, top_k: int, **_: Any) -> QueryAnswer:
        index = (scope.caller.tenant, index_id)
        self.queries.append((*index, query, top_k))
        if index not in self.texts:
            raise IndexNotFound(f"There is no index '{index_id}'.")
        hits = [
            Hit(id=DocumentId(f"d{number}"), text=text, metadata={"source": "shelf"}, score=1 - number / 10)
            for number, text in enumerate(self.texts[index][:top_k], 1)
        ]
        return QueryAnswer(index_id=index_id, results=tuple(hits), version=7)


def rag_with(reader: Reader) -> Rag:
    """Return the parts of rag, of which a test may use only ``reader``."""
    embedder = Embedder(NoEmbeddings(), EmbeddingModel("none", 1))
    cache = ObjectCache(0)
    return Rag(embedder, reader, Writer(embedder, cache), IndexDeleter(cache))


ABSENT: Any = None
"""A service that a test must not use."""


@dataclass
class FakeServices:
    """The services that tools need, of which a test gives those that it uses."""

    rag: Rag = field(default_factory=lambda: rag_with(FakeReader()))
    cascade: Cascade = field(default_factory=lambda: Cascade(GatewayConfig()))
    search_engine: SearchEngine = field(default_factory=lambda: SearchEngine(SearchConfig(), lambda _: None))
    workspaces: Workspaces = field(default_factory=Workspaces)
    sandbox: Sandbox = field(default_factory=no_sandbox)
    tool_models: ChatModels = ABSENT
    delegates: Delegates = ABSENT
    lineage_search: LineageSearcher = ABSENT
    editor: Editor = ABSENT


def toolbox_of(
    *tools: type[Tool], services: FakeServices | None = None, clock: Callable[[], int] = now_s, **given: Any
) -> Toolbox:
    """Return the tools of a gateway with the services that are ``given``, and further ``tools`` of a test."""
    parts = services or FakeServices(**given)
    own = ToolClasses([tool.tool_name for tool in tools], load={tool.tool_name: tool for tool in tools}.__getitem__)
    return Toolbox(lambda turn: (*gateway_toolsets(parts, turn), own), clock=clock)
