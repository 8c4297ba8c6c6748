"""The manifest of an index: the one item in the table that lists the segments of the current version.

A version never changes. A write puts its objects first, and then replaces the manifest on condition that it is still the one that
the write started from. Each life of an index has a random generation. A deleted index leaves a tombstone, so that its versions
never go back.
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
MANIFEST_BYTES: Final = 32_000
INLINE_DEAD_BYTES: Final = 128
_MAX_GARBAGE_ENTRIES: Final = 64
_NEVER: Final = Timestamp("")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in one version of an index. ``dead_rows`` of its ``rows`` are deleted. The packed deletion bitmap is
    ``dead_inline``, or, if it is too long, the object ``dead_object`` of the segment. ``text_bytes`` counts live rows only;
    ``docs_bytes`` is the size of the object ``docs.jsonl``."""

    id: str
    rows: int
    text_bytes: int
    docs_bytes: int
    dead_rows: int = 0
    dead_inline: bytes = b""
    dead_object: str = ""

    @property
    def live_rows(self) -> int:
        return self.rows - self.dead_rows


@dataclass(frozen=True, slots=True)
class GarbageEntry:
    """A path that no version lists any more: ``<generation>``, ``<generation>/<segment>`` or one object of a segment. It was
    removed at ``at``, in seconds since the epoch. A reader of an earlier version may still need it for a while."""

    path: str
    at: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of an index. An index that never existed has version 0, a deleted one keeps its version, and neither has a
    generation.

    ``version`` counts writes, and clients see it. ``revision`` counts every swap, also that of a merge.
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

    def next_version(self, next_: "Manifest", *, garbage: Sequence[str], at: int) -> "Manifest":
        """Return ``next_`` as the version after this one, which stopped listing the paths ``garbage`` at second ``at``.

        If there are more than 64 garbage paths, the oldest are forgotten. The sweep of orphans finds them."""
        return replace(self.next_revision(next_, garbage=garbage, at=at), version=self.version + 1)

    def next_revision(self, next_: "Manifest", *, garbage: Sequence[str], at: int) -> "Manifest":
        """Return ``next_`` as the next revision, with the same documents and so the same version; else as ``next_version``."""
        entries = self.garbage + tuple(GarbageEntry(path, at) for path in garbage)
        return replace(
            next_,
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
    """Decode the manifest in ``item``. Without an item, return that of an index that never existed."""
    if item is None:
        return Manifest()
    return Manifest(
        generation=_text(item, "generation"),
        version=_number(item, "version"),
        embedding_model=_text(item, "embedding_model"),
        dimensions=_number(item, "dimensions"),
        created_at=Timestamp(_text(item, "created_at")),
        updated_at=Timestamp(_text(item, "updated_at")),
        segments=tuple(_segment(entry) for entry in json.loads(_text(item, "segments"))),
        garbage=tuple(GarbageEntry(**entry) for entry in json.loads(_text(item, "retired"))),
        revision=cast(int, item.get("revision", 0)),
    )


def swap_write(tenant: TenantId, index: IndexId, before: Manifest, after: Manifest) -> Put:
    """Return the write that makes ``after`` the current version if ``before`` still is.

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
        "segments": _json([_entry(segment) for segment in after.segments]),
        "retired": encode_garbage(after.garbage),
        "swaps": "",  # workers of the previous release read it during a deployment
    }
    size = sum(len(name) + len(str(value).encode()) for name, value in attributes.items())
    if size > MANIFEST_BYTES or len(after.segments) > MAX_SEGMENTS:
        raise InternalError(f"A manifest of {size} bytes and {len(after.segments)} segments is too large.")
    return Put(rag_manifest(tenant, index), attributes, _current_condition(before))


def unchanged_check(tenant: TenantId, index: IndexId, before: Manifest) -> Check:
    """Return the condition that ``before`` is still the current version."""
    return Check(rag_manifest(tenant, index), _current_condition(before))


def encode_garbage(garbage: Sequence[GarbageEntry]) -> str:
    """Encode ``garbage`` as the item stores it."""
    return _json([{"path": entry.path, "at": entry.at} for entry in garbage])


def _current_condition(before: Manifest) -> Condition:
    """Return the condition that ``before`` is the current version.

    The revision alone is enough as long as there is a tombstone. If an operator removes or restores the item, revisions start at
    0 again; then the generation keeps a writer of the old life from writing to the new one.
    """
    if before.revision:
        count = Equals("revision", before.revision)
    elif before.version:
        count = Equals("version", before.version)  # an item without revisions, from an earlier release
    else:
        return ITEM_ABSENT
    return Equals("generation", before.generation) & count


def _entry(segment: Segment) -> dict[str, str | int]:
    entry: dict[str, str | int] = {
        "id": segment.id,
        "rows": segment.rows,
        "text_bytes": segment.text_bytes,
        "docs_bytes": segment.docs_bytes,
    }
    if segment.dead_rows:
        entry["dead_rows"] = segment.dead_rows
    if segment.dead_inline:
        entry["dead_inline"] = base64.b64encode(segment.dead_inline).decode()
    if segment.dead_object:
        entry["dead_object"] = segment.dead_object
    return entry


def _segment(entry: Mapping[str, str | int]) -> Segment:
    return Segment(
        id=str(entry["id"]),
        rows=int(entry["rows"]),
        text_bytes=int(entry["text_bytes"]),
        docs_bytes=int(entry["docs_bytes"]),
        dead_rows=int(entry.get("dead_rows", 0)),
        dead_inline=base64.b64decode(str(entry.get("dead_inline", ""))),
        dead_object=str(entry.get("dead_object", "")),
    )


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _text(item: Item, name: str) -> str:
    return cast(str, item[name])


def _number(item: Item, name: str) -> int:
    return cast(int, item[name])
