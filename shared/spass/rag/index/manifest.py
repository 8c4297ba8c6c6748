"""The manifest of an index: the one item in the table that lists the segments of the current version.

A version never changes. A write puts its objects first and then replaces the manifest by compare-and-swap. An index gets a random
generation when it is created or replaced. A deleted index leaves a tombstone, so that its version never decreases.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeVar

from spass.core.codec import AsJson, Required, StoredAs, encode_record
from spass.core.errors import DocumentNotFound, EmbeddingModelMismatch, IndexNotFound, InternalError, StorageUnavailable
from spass.core.ids import DocumentId, IndexId, TenantId
from spass.core.json import dump
from spass.core.time import Timestamp, now, now_s
from spass.store.bucket import ObjectMissing
from spass.store.codec import decode, encode
from spass.store.keys import RAG_INDEX_PREFIX, rag_manifest, rag_partition
from spass.store.restored import check_restored
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Check, Condition, Equals, Item, Update

A = TypeVar("A")

MAX_SEGMENTS: Final = 64
MAX_MANIFEST_BYTES: Final = 32_000
MAX_INLINE_BITMAP_BYTES: Final = 128
_MAX_GARBAGE_ENTRIES: Final = 64
_MAX_READS: Final = 2
_MIN_NUMBERS: Final = 2**19  # of a segment that has codes; a smaller one is scanned as fast without them
_MIN_DIMENSIONS: Final = 32  # with fewer, the codes with their bounds are hardly smaller than the vectors
_NEVER: Final = Timestamp("")
_OPTIONAL: Final = ("dead_rows", "dead_inline", "dead_object", "format")

VECTORS_ALONE: Final = 0
CODED: Final = 1
"""The formats of a segment: without the object ``codes``, and with it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in one version of an index. Of its ``rows``, ``deleted_rows`` are deleted. The packed deletion bitmap is in
    ``inline_bitmap`` or, if it is too long, in the object named ``bitmap_object``. ``text_bytes`` counts live rows only.
    ``docs_bytes`` is the size of the object ``docs.jsonl``. ``format`` says whether it has codes."""

    id: str
    rows: int
    text_bytes: int
    docs_bytes: int
    deleted_rows: Annotated[int, StoredAs("dead_rows")] = 0
    inline_bitmap: Annotated[bytes, StoredAs("dead_inline")] = b""
    bitmap_object: Annotated[str, StoredAs("dead_object")] = ""
    format: int = VECTORS_ALONE

    @property
    def live_rows(self) -> int:
        return self.rows - self.deleted_rows


def has_codes(rows: int, dimensions: int) -> bool:
    """Return whether a segment of this size is written, and scanned, with codes."""
    return dimensions >= _MIN_DIMENSIONS and rows * dimensions >= _MIN_NUMBERS


@dataclass(frozen=True, slots=True)
class GarbageEntry:
    """A path that the current version does not list any more: ``<generation>``, ``<generation>/<segment>`` or one object of a
    segment. It was removed at ``removed_at``, in seconds since the epoch. A reader of an earlier version may still need it."""

    path: str
    removed_at: Annotated[int, StoredAs("at")]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of an index. An index that never existed has version 0, and a deleted index keeps its version. Both have an
    empty generation.

    ``version`` counts writes and is shown to clients. ``revision`` counts all swaps, also of merges.
    """

    generation: Annotated[str, Required()] = ""
    version: Annotated[int, Required()] = 0
    embedding_model: Annotated[str, Required()] = ""
    dimensions: Annotated[int, Required()] = 0
    created_at: Annotated[Timestamp, Required()] = _NEVER
    updated_at: Annotated[Timestamp, Required()] = _NEVER
    segments: Annotated[tuple[Segment, ...], AsJson(), Required()] = ()
    garbage: Annotated[tuple[GarbageEntry, ...], StoredAs("retired"), AsJson(), Required()] = ()
    revision: Annotated[int, Required()] = 0

    @property
    def exists(self) -> bool:
        return bool(self.generation)

    @property
    def doc_count(self) -> int:
        return sum(segment.live_rows for segment in self.segments)

    @property
    def text_bytes(self) -> int:
        return sum(segment.text_bytes for segment in self.segments)

    def next_version(self, after: "Manifest") -> "Manifest":
        """Return ``after`` as the version that follows this one, updated now. The paths that it no longer lists become garbage.

        If there are more than 64 garbage entries, the oldest are dropped. The sweep deletes their objects as orphans."""
        return replace(self.next_revision(after), version=self.version + 1, updated_at=now())

    def next_revision(self, after: "Manifest") -> "Manifest":
        """Return ``after`` with this version and its time, because the documents stay the same, and with the garbage."""
        removed_at = now_s()
        garbage = [*self.garbage, *(GarbageEntry(path, removed_at) for path in _garbage_paths(self, after))]
        return replace(after, version=self.version, revision=self.revision + 1, garbage=tuple(garbage[-_MAX_GARBAGE_ENTRIES:]))


def _garbage_paths(before: Manifest, after: Manifest) -> list[str]:
    """Return the paths that ``after`` no longer lists: a whole generation, or segments and replaced bitmaps."""
    if before.generation != after.generation:
        return [before.generation] if before.exists else []
    listed = {segment.id: segment for segment in after.segments}
    paths = []
    for segment in before.segments:
        if segment.id not in listed:
            paths.append(f"{before.generation}/{segment.id}")
        elif segment.bitmap_object and segment.bitmap_object != listed[segment.id].bitmap_object:
            paths.append(f"{before.generation}/{segment.id}/{segment.bitmap_object}")
    return paths


async def read_manifest(store: TenantStore, index: IndexId) -> Manifest:
    """Return the current version."""
    return decode_manifest(await store.table.get(rag_manifest(store.tenant, index)))


async def read_current(store: TenantStore, index: IndexId, read: Callable[[Manifest], Awaitable[A]]) -> A:
    """Call ``read`` on the current version and return its result. If objects of that version were swept in the meantime, there is
    a newer version: call ``read`` once more. Raise ``StorageUnavailable`` if the objects of the newer version were swept too, and
    ``InternalError`` if a restore could not bring them back."""
    manifest = Manifest()
    for _ in range(_MAX_READS):
        manifest = await read_manifest(store, index)
        with suppress(ObjectMissing):
            return await read(manifest)
    await check_restored(store, rag_manifest(store.tenant, index), "this index", generation=manifest.generation)
    raise StorageUnavailable("The index is changing; try again.", retry_after=1)


async def list_manifests(
    store: TenantStore, *, after: str | None = None, page_size: int
) -> AsyncIterator[tuple[IndexId, Manifest]]:
    """Yield the tenant's indices in the order of their ids, deleted ones included. Begin after the id ``after``, and read
    ``page_size`` manifests with each query."""
    start = None if after is None else RAG_INDEX_PREFIX + after
    async for items in store.table.pages(rag_partition(store.tenant), prefix=RAG_INDEX_PREFIX, after=start, size=page_size):
        for item in items:
            yield IndexId(str(item["sk"]).removeprefix(RAG_INDEX_PREFIX)), decode_manifest(item)


def index_not_found(index_id: IndexId) -> IndexNotFound:
    return IndexNotFound(f"There is no index {index_id!r}.", param="index_id")


def document_not_found(index_id: IndexId, document_id: DocumentId) -> DocumentNotFound:
    return DocumentNotFound(f"The index {index_id!r} holds no document {document_id!r}.", param="doc_id")


def decode_manifest(item: Item | None) -> Manifest:
    """Decode the manifest in ``item``. Without an item, return the manifest of an index that never existed."""
    if item is None:
        return Manifest()
    return decode(Manifest, item)


def swap_write(tenant: TenantId, index: IndexId, before: Manifest, after: Manifest) -> Update:
    """Return the write that replaces the current version ``before`` by ``after``, on condition that ``before`` is still current.
    It keeps attributes that a later release has stored. Raise ``InternalError`` if ``after`` has more bytes or segments than a
    manifest may have."""
    attributes = encode(after, without=("segments",)) | {
        "segments": dump([_encode_segment(segment) for segment in after.segments])
    }
    size = sum(len(name) + len(str(value).encode()) for name, value in attributes.items())
    if size > MAX_MANIFEST_BYTES or len(after.segments) > MAX_SEGMENTS:
        raise InternalError(f"A manifest of {size} bytes and {len(after.segments)} segments is too large.")
    return Update(rag_manifest(tenant, index), set=attributes, when=_current_condition(before))


def unchanged_check(tenant: TenantId, index: IndexId, before: Manifest) -> Check:
    """Return the condition that ``before`` is still the current version."""
    return Check(rag_manifest(tenant, index), _current_condition(before))


def encode_garbage(garbage: Sequence[GarbageEntry]) -> str:
    """Encode ``garbage`` as the item stores it."""
    return dump([encode_record(entry) for entry in garbage])


def _current_condition(before: Manifest) -> Condition:
    """Return the condition that ``before`` is the current version.

    As long as the item exists, the revision alone is enough. If an operator removes or restores the item, revisions start at 0
    again. Then the generation stops a writer that read the old item from replacing the new one.
    """
    if not before.revision:
        return ITEM_ABSENT
    return Equals("generation", before.generation) & Equals("revision", before.revision)


def _encode_segment(segment: Segment) -> dict[str, str | int]:
    """Return the members of ``segment``. The optional ones are left out if they are empty, because most are, and a manifest has
    many segments."""
    stored = encode_record(segment) | {"dead_inline": base64.b64encode(segment.inline_bitmap).decode()}
    return {name: value for name, value in stored.items() if value or name not in _OPTIONAL}


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """An embedding model and the dimensions of its vectors."""

    name: str
    dimensions: int


def check_model(manifest: Manifest, model: EmbeddingModel) -> None:
    """Check that an index that exists was built with ``model``. Raise ``EmbeddingModelMismatch`` if the index was built with
    another model or dimension."""
    if manifest.exists and (manifest.embedding_model, manifest.dimensions) != (model.name, model.dimensions):
        raise EmbeddingModelMismatch(
            f"The index was built with {manifest.embedding_model} ({manifest.dimensions} dimensions), "
            f"but {model.name} ({model.dimensions}) is configured now; replace the index, or configure its model again."
        )
