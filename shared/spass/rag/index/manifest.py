"""The manifest of an index: the one item in the table that lists the segments of the current version.

A version never changes. A write puts its objects first and then replaces the manifest by compare-and-swap. An index gets a random
generation when it is created or replaced. A deleted index leaves a tombstone, so that its version never decreases.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.keys import rag_manifest
from spass.aws.writes import ITEM_ABSENT, Check, Condition, Equals, Put
from spass.core.errors import IndexNotFound, InternalError
from spass.core.ids import IndexId, TenantId
from spass.core.time import Timestamp

MAX_SEGMENTS: Final = 64
MAX_MANIFEST_BYTES: Final = 32_000
MAX_INLINE_BITMAP_BYTES: Final = 128
_MAX_GARBAGE_ENTRIES: Final = 64
_NEVER: Final = Timestamp("")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in one version of an index. Of its ``rows``, ``deleted_rows`` are deleted. The packed deletion bitmap is in
    ``inline_bitmap`` or, if it is too long, in the object named ``bitmap_object``. ``text_bytes`` counts live rows only.
    ``docs_bytes`` is the size of the object ``docs.jsonl``."""

    id: str
    rows: int
    text_bytes: int
    docs_bytes: int
    deleted_rows: int = 0
    inline_bitmap: bytes = b""
    bitmap_object: str = ""

    @property
    def live_rows(self) -> int:
        return self.rows - self.deleted_rows


@dataclass(frozen=True, slots=True)
class GarbageEntry:
    """A path that the current version does not list any more: ``<generation>``, ``<generation>/<segment>`` or one object of a
    segment. It was removed at ``removed_at``, in seconds since the epoch. A reader of an earlier version may still need it."""

    path: str
    removed_at: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of an index. An index that never existed has version 0, and a deleted index keeps its version. Both have an
    empty generation.

    ``version`` counts writes and is shown to clients. ``revision`` counts all swaps, including those of merges.
    """

    generation: str = ""
    version: int = 0
    embedding_model: str = ""
    dimensions: int = 0
    created_at: Timestamp = _NEVER
    updated_at: Timestamp = _NEVER
    segments: tuple[Segment, ...] = ()
    garbage: tuple[GarbageEntry, ...] = ()
    revision: int = 0

    @property
    def exists(self) -> bool:
        return bool(self.generation)

    @property
    def doc_count(self) -> int:
        return sum(segment.live_rows for segment in self.segments)

    @property
    def text_bytes(self) -> int:
        return sum(segment.text_bytes for segment in self.segments)

    def with_segments(self, segments: Sequence[Segment], updated_at: Timestamp) -> "Manifest":
        return replace(self, segments=tuple(segments), updated_at=updated_at)

    def next_version(self, manifest: "Manifest", *, garbage: Sequence[str], removed_at: int) -> "Manifest":
        """Return ``manifest`` as the version after this one. It does not list the paths in ``garbage`` any more, which were
        removed at ``removed_at`` (seconds since the epoch).

        If there are more than 64 garbage paths, the oldest are dropped from the list. The sweep deletes them as orphans."""
        return replace(self.next_revision(manifest, garbage=garbage, removed_at=removed_at), version=self.version + 1)

    def next_revision(self, manifest: "Manifest", *, garbage: Sequence[str], removed_at: int) -> "Manifest":
        """Do the same as ``next_version``, but keep the version number, because the documents stay the same."""
        entries = self.garbage + tuple(GarbageEntry(path, removed_at) for path in garbage)
        return replace(
            manifest,
            version=self.version,
            revision=self.revision + 1,
            garbage=entries[-_MAX_GARBAGE_ENTRIES:],
        )


async def read_manifest(store: TenantStore, index: IndexId) -> Manifest:
    """Return the current version."""
    return decode_manifest(await store.table.get(rag_manifest(store.tenant, index)))


def index_not_found(index_id: IndexId) -> IndexNotFound:
    return IndexNotFound(f"There is no index {index_id!r}.", param="index_id")


def decode_manifest(item: Item | None) -> Manifest:
    """Decode the manifest in ``item``. Without an item, return the manifest of an index that never existed."""
    if item is None:
        return Manifest()
    return Manifest(
        generation=_text(item, "generation"),
        version=_number(item, "version"),
        embedding_model=_text(item, "embedding_model"),
        dimensions=_number(item, "dimensions"),
        created_at=Timestamp(_text(item, "created_at")),
        updated_at=Timestamp(_text(item, "updated_at")),
        segments=tuple(_decode_segment(entry) for entry in json.loads(_text(item, "segments"))),
        garbage=tuple(GarbageEntry(entry["path"], entry["at"]) for entry in json.loads(_text(item, "retired"))),
        revision=cast(int, item.get("revision", 0)),
    )


def swap_write(tenant: TenantId, index: IndexId, before: Manifest, after: Manifest) -> Put:
    """Return the write that replaces the current version ``before`` by ``after``, on condition that ``before`` is still current.

    Raises:
        InternalError: ``after`` has more bytes or segments than a manifest may have.
    """
    attributes: dict[str, Value] = {
        "generation": after.generation,
        "version": after.version,
        "revision": after.revision,
        "embedding_model": after.embedding_model,
        "dimensions": after.dimensions,
        "created_at": after.created_at,
        "updated_at": after.updated_at,
        "segments": _json([_encode_segment(segment) for segment in after.segments]),
        "retired": encode_garbage(after.garbage),  # the stored name of the garbage list
        "swaps": "",  # workers of the previous release read it during a deployment
    }
    size = sum(len(name) + len(str(value).encode()) for name, value in attributes.items())
    if size > MAX_MANIFEST_BYTES or len(after.segments) > MAX_SEGMENTS:
        raise InternalError(f"A manifest of {size} bytes and {len(after.segments)} segments is too large.")
    return Put(rag_manifest(tenant, index), attributes, _current_condition(before))


def unchanged_check(tenant: TenantId, index: IndexId, before: Manifest) -> Check:
    """Return the condition that ``before`` is still the current version."""
    return Check(rag_manifest(tenant, index), _current_condition(before))


def encode_garbage(garbage: Sequence[GarbageEntry]) -> str:
    """Encode ``garbage`` as the item stores it."""
    return _json([{"path": entry.path, "at": entry.removed_at} for entry in garbage])


def _current_condition(before: Manifest) -> Condition:
    """Return the condition that ``before`` is the current version.

    As long as the item exists, the revision alone is enough. If an operator removes or restores the item, revisions start at 0
    again. Then the generation stops a writer that read the old item from replacing the new one.
    """
    if before.revision:
        count = Equals("revision", before.revision)
    elif before.version:
        count = Equals("version", before.version)  # an item without revisions, from an earlier release
    else:
        return ITEM_ABSENT
    return Equals("generation", before.generation) & count


def _encode_segment(segment: Segment) -> dict[str, str | int]:
    entry: dict[str, str | int] = {
        "id": segment.id,
        "rows": segment.rows,
        "text_bytes": segment.text_bytes,
        "docs_bytes": segment.docs_bytes,
    }
    if segment.deleted_rows:
        entry["dead_rows"] = segment.deleted_rows
    if segment.inline_bitmap:
        entry["dead_inline"] = base64.b64encode(segment.inline_bitmap).decode()
    if segment.bitmap_object:
        entry["dead_object"] = segment.bitmap_object
    return entry


def _decode_segment(entry: Mapping[str, str | int]) -> Segment:
    return Segment(
        id=str(entry["id"]),
        rows=int(entry["rows"]),
        text_bytes=int(entry["text_bytes"]),
        docs_bytes=int(entry["docs_bytes"]),
        deleted_rows=int(entry.get("dead_rows", 0)),
        inline_bitmap=base64.b64decode(str(entry.get("dead_inline", ""))),
        bitmap_object=str(entry.get("dead_object", "")),
    )


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _text(item: Item, name: str) -> str:
    return cast(str, item[name])


def _number(item: Item, name: str) -> int:
    return cast(int, item[name])
