"""The precondition of a write, as HTTP's ``If-Match``: the part of the index that the caller read before is unchanged.

The entity tag of a part changes if and only if the part or the generation changes.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spass.core.ids import DocumentId, IndexId
from spass.core.json import dump_canonical
from spass.core.messages import Json
from spass.rag.index.cache import ObjectCache
from spass.rag.index.locations import load_live_ids, locate_documents, read_document
from spass.rag.index.manifest import Manifest
from spass.rag.index.objects import SegmentObjects
from spass.store.tenant_store import TenantStore


class IndexChanged(Exception):
    """The part of the index that a precondition names has changed since the caller read it."""


View: TypeAlias = Callable[[Manifest, SegmentObjects], Awaitable[Json]]
"""Read one part of an index in the version of the manifest. Return None if it is absent. Raise ``ObjectMissing`` if the version
has been swept."""


async def whole_index(manifest: Manifest, _: SegmentObjects) -> Json:
    """Read the version, which changes with every document."""
    return manifest.version if manifest.exists else None


def one_document(document: DocumentId) -> View:
    """Return the view of the text and metadata of one document."""

    async def read(manifest: Manifest, objects: SegmentObjects) -> Json:
        location = locate_documents(await load_live_ids(objects, manifest.segments), [document]).get(document)
        if location is None:
            return None
        stored = await read_document(objects, location)
        return [stored.text, stored.metadata]

    return read


def existing_ids(documents: Sequence[DocumentId]) -> View:
    """Return the view of an append: the ``documents`` that are in the index already."""

    async def read(manifest: Manifest, objects: SegmentObjects) -> Json:
        return sorted(locate_documents(await load_live_ids(objects, manifest.segments), documents))

    return read


async def entity_tag(view: View, manifest: Manifest, objects: SegmentObjects) -> str:
    """Return the SHA-256 (hex) of the generation and of what ``view`` reads in the version ``manifest``. Raise ``ObjectMissing``
    if the version has been swept."""
    return hashlib.sha256(dump_canonical([manifest.generation, await view(manifest, objects)])).hexdigest()


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The precondition that ``view`` still has the entity tag ``tag``."""

    view: View
    tag: str
    cache: ObjectCache

    async def check(self, store: TenantStore, index: IndexId, manifest: Manifest) -> None:
        """Check that the view has the same tag in the version ``manifest``.

        Raises:
            IndexChanged: it has another one.
            ObjectMissing: the version has been swept.
        """
        objects = SegmentObjects(store, index, manifest.generation, self.cache)
        if await entity_tag(self.view, manifest, objects) != self.tag:
            raise IndexChanged
