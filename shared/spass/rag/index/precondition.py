"""The precondition of a write, as HTTP's ``If-Match``: the part of the index that the caller read before is unchanged.

A view reads one part of a version of an index. The entity tag of that part changes if and only if the part or the generation
changes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


class View(Protocol):
    """One part of an index."""

    async def read(self, manifest: Manifest, objects: SegmentObjects, /) -> Json:
        """Read the part in the version ``manifest``. Return None if it is absent.

        Raises:
            ObjectMissing: the version has been swept.
        """
        ...


@dataclass(frozen=True, slots=True)
class WholeIndex:
    """All documents of the index."""

    async def read(self, manifest: Manifest, _: SegmentObjects, /) -> Json:
        return manifest.version if manifest.exists else None


@dataclass(frozen=True, slots=True)
class OneDocument:
    """The text and metadata of one document."""

    document: DocumentId

    async def read(self, manifest: Manifest, objects: SegmentObjects, /) -> Json:
        location = locate_documents(await load_live_ids(objects, manifest.segments), [self.document]).get(self.document)
        if location is None:
            return None
        document = await read_document(objects, location)
        return [document.text, document.metadata]


@dataclass(frozen=True, slots=True)
class ExistingIds:
    """The view of an append: those of ``documents`` that are in the index already."""

    documents: Sequence[DocumentId]

    async def read(self, manifest: Manifest, objects: SegmentObjects, /) -> Json:
        return sorted(locate_documents(await load_live_ids(objects, manifest.segments), self.documents))


async def entity_tag(view: View, manifest: Manifest, objects: SegmentObjects) -> str:
    """Return the SHA-256 (hex) of the generation and of what ``view`` reads in the version ``manifest``.

    Raises:
        ObjectMissing: the version has been swept.
    """
    return hashlib.sha256(dump_canonical([manifest.generation, await view.read(manifest, objects)])).hexdigest()


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
