"""Deliver messages of the ingest queue to workers of one tenant, with vectors computed from the bytes of the text."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final
from urllib.parse import quote_plus

from spass.aws.clients import Aws
from spass.calls.scope import Scope
from spass.core.ids import IndexId, RequestId, TenantId, UploadId, UserId, random_suffix
from spass.core.jobs import Delivery, IngestPart, body_of
from spass.core.messages import TokenUsage
from spass.core.time import Deadline
from spass.jobs.background import background_handler
from spass.jobs.dispatch import Dispatcher, parse
from spass.models.types import EmbeddingReply, pack_rows
from spass.rag.index.cache import ObjectCache
from spass.rag.index.catalog import describe_index
from spass.rag.ingest.lease import IngestSettings
from spass.rag.ingest.uploads import Upload, Uploads
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig, ModelConfig
from spass.tenancy.identity import Caller, Identity
from spass.testing.rag import build_rag
from spass.tools.base import Rag

DIMENSIONS: Final = 4
INDEX: Final = IndexId("books")
_PUTS: Final = count(0x55AED6DCD90281E5)


def config_with(model: str = "arithmetic") -> GatewayConfig:
    return GatewayConfig.model_validate(
        {
            "llm": {"backends": [{"provider": "embedded"}]},
            "models": [{"name": model, "kind": "embedding", "dimensions": DIMENSIONS, "context_window": 256}],
            "defaults": {"embedding_model": model},
            "usd_to_eur": "0.9",
            "tenants": [],
        }
    )


@dataclass(slots=True)
class Calls:
    """Embedding calls. ``before_embedding`` and ``during_embedding`` get the texts of each call; the first may raise. ``texts``
    are those that were embedded."""

    config: GatewayConfig = field(default_factory=config_with)
    before_embedding: Callable[[Sequence[str]], object] = lambda _: None
    during_embedding: Callable[[Sequence[str]], Awaitable[None]] | None = None
    texts: list[str] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        self.scopes.append(scope)
        self.before_embedding(texts)
        if self.during_embedding is not None:
            await self.during_embedding(texts)
        self.texts += texts
        rows = [[float(sum(text.encode()) // 5**n % 5) - 2.0 for n in range(DIMENSIONS)] for text in texts]
        return EmbeddingReply(pack_rows(rows), len(texts), DIMENSIONS, TokenUsage())

    def embedding_model(self, scope: Scope) -> ModelConfig:
        return self.config.model(self.config.defaults.embedding_model)


@dataclass(slots=True)
class IngestHarness:
    """The workers of one tenant, which embed with ``calls``. Each delivery starts a new worker with an empty cache."""

    aws: Aws
    sent: list[str] = field(default_factory=list)
    """The messages that workers sent to the queue and that no test has received."""
    calls: Calls = field(default_factory=Calls)
    tenant: TenantId = field(default_factory=lambda: TenantId(f"t-{random_suffix()}"))
    settings: IngestSettings = field(default_factory=lambda: IngestSettings(retry_pause_seconds=()))
    """By default a worker never retries: a failed message goes back to the queue."""

    def change_settings(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)

    def rival(self, calls: Calls | None = None) -> "IngestHarness":
        """Return a second worker of the same tenant."""
        return replace(self, calls=calls or Calls())

    @property
    def store(self) -> TenantStore:
        return self.aws.for_tenant(self.tenant)

    @property
    def scope(self) -> Scope:
        identity = Identity(self.tenant, "token", admin=False, allowed_models=("*",))
        caller = Caller(identity, UserId("anna"), RequestId("req_form"), None, 0, "/a1/rag/indices/{index_id}/uploads")
        return Scope.for_request(caller, self.store)

    @property
    def rag(self) -> Rag:
        return build_rag(self.calls, self.calls.config, ObjectCache())

    @property
    def uploads(self) -> Uploads:
        return Uploads(self.calls, self.calls.config)

    def put(self, path: str, body: bytes) -> str:
        """Put a file under ``uploads/<tenant>/``. Return the body of the message with its event."""
        s3 = self.aws._s3
        key = f"uploads/{self.tenant}/{path}"
        answer = s3.put_object(Bucket="spass", Key=key, Body=body)
        return put_event(key, answer.get("VersionId"), answer["ETag"], sequencer=f"{next(_PUTS):018X}", size=len(body))

    async def deliver(self, body: str, *, message: str = "", receives: int = 1, seconds: float = 870) -> bool:
        """Deliver a message to a new worker and return whether it is done. Without an id, it is a new message."""
        delivery = Delivery(message or random_suffix(), receives)
        return await self.dispatcher.message(body, delivery, Deadline.after(seconds))

    @property
    def dispatcher(self) -> Dispatcher:
        return Dispatcher({self.tenant}, self.aws.for_tenant, background_handler(self.rag.writer, ObjectCache(), self.settings))

    async def deliver_all(self) -> list[IngestPart]:
        """Deliver the jobs that workers send until there are no more. Return the parts among them, in the order of delivery."""
        parts: list[IngestPart] = []
        while bodies := self.receive():
            for body in bodies:
                assert await self.deliver(body)
                parts += [job for job in parse(body) if isinstance(job, IngestPart)]
        return parts

    def receive_parts(self) -> list[int]:
        """Receive the messages that workers have sent and return the numbers of the parts among them."""
        return [job.part for body in self.receive() for job in parse(body) if isinstance(job, IngestPart)]

    def part(self, upload: UploadId, number: int, index: IndexId = INDEX) -> str:
        """Return the body of the message of a part."""
        return body_of(IngestPart(self.tenant, index, upload, number))

    async def only_upload(self, index: IndexId = INDEX) -> Upload:
        (upload,) = (await self.uploads.list(self.scope, index)).uploads
        return upload

    async def only_running(self, index: IndexId = INDEX) -> Upload:
        uploads = (await self.uploads.list(self.scope, index)).uploads
        (upload,) = (upload for upload in uploads if upload.status == "running")
        return upload

    async def texts(self, index: IndexId = INDEX) -> dict[str, str]:
        """Return the texts of the documents by id. Check that the index counts as many."""
        rag, cursor = self.rag, None
        texts: list[tuple[str, str]] = []
        while True:
            page = await rag.reader.documents(self.scope, index, cursor, 1000)
            texts += [(str(document.id), document.text) for document in page.documents]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert len(dict(texts)) == len(texts) == (await describe_index(self.scope, index)).doc_count
        return dict(texts)

    def receive(self) -> list[str]:
        """Receive the messages that workers have sent."""
        bodies = list(self.sent)
        self.sent.clear()
        return bodies


def put_event(
    key: str,
    version: str | None,
    tag: str = "tag",
    name: str = "ObjectCreated:Put",
    *,
    sequencer: str | None = None,
    size: int = 1,
) -> str:
    """Return a message with the bucket's event of one object."""
    entry: dict[str, Any] = {"key": quote_plus(key, safe="/"), "size": size, "eTag": tag, "sequencer": sequencer or f"00{tag}"}
    if version is not None:
        entry["versionId"] = version
    return json.dumps({"Records": [{"eventSource": "aws:s3", "eventName": name, "s3": {"object": entry}}]})


def lines(*documents: tuple[str, str] | str) -> bytes:
    """Return JSONL: a line for each pair of id and text. A string is a line already."""
    return "".join(f"{line if isinstance(line, str) else _line(*line)}\n" for line in documents).encode()


def numbered_texts(count: int, text: str = "text") -> dict[str, str]:
    """Return texts by document id: d0000, d0001, …."""
    return {f"d{n:04}": f"{text} {n}" for n in range(count)}


def jsonl_file(documents: Mapping[str, str]) -> bytes:
    """Return a JSONL file with these texts by document id."""
    return lines(*documents.items())


def _line(name: str, text: str) -> str:
    return json.dumps({"id": name, "text": text}, ensure_ascii=False)
