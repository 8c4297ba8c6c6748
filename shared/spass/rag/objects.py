"""A segment's objects in the bucket, read through what the process already holds."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from spass.aws.clients import TenantStore
from spass.core.ids import IndexId
from spass.rag.bitmap import Bitmap
from spass.rag.cache import ObjectCache, ObjectName
from spass.rag.ids import Ids
from spass.rag.manifest import Segment

T = TypeVar("T")

VECTORS: Final = "vectors.npy"
IDS: Final = "ids"
META: Final = "meta"
DOCS: Final = "docs.jsonl"
OFFSETS: Final = "offsets.npy"

_WHOLE_DOCS_BYTES: Final = 256 * 1024  # up to here texts are read whole and kept: one read serves all later winners
_GAP_BYTES: Final = 32 * 1024  # two ranges nearer than this are one read


class SegmentObjects:
    """The objects of one life of one index: ``rag/<index>/<generation>/<segment>/…`` below the tenant's prefix.

    Every read may raise ``ObjectMissing``: the segment was retired and swept since the manifest was read.
    """

    def __init__(self, store: TenantStore, index: IndexId, generation: str, cache: ObjectCache) -> None:
        self.generation = generation
        self._store = store
        self._prefix = f"rag/{index}/{generation}"
        self._cache = cache

    async def read(self, segment: str, part: str) -> bytes:
        """A whole object."""
        name = ObjectName(self._store.tenant, f"{self._prefix}/{segment}/{part}")
        body = self._cache.get(name)
        if body is None:
            body = await self._store.objects.get(name.key)
            self._keep(name, body)
        return body

    async def write(self, segment: str, parts: Mapping[str, bytes]) -> None:
        """Put a new segment's objects, or a new bitmap of an old one. They stay in the cache: who writes reads next."""
        await asyncio.gather(*(self._put(f"{self._prefix}/{segment}/{part}", body) for part, body in parts.items()))

    async def _put(self, key: str, body: bytes) -> None:
        await self._store.objects.put(key, body)
        self._keep(ObjectName(self._store.tenant, key), body)

    def _keep(self, name: ObjectName, body: bytes) -> None:
        """Memory is for vectors and ids: the texts of a large segment are left in the bucket."""
        if len(body) <= _WHOLE_DOCS_BYTES or not name.key.endswith(f"/{DOCS}"):
            self._cache.put(name, body)

    async def ids(self, segment: Segment) -> Ids:
        return Ids(await self.read(segment.id, IDS))

    async def dead(self, segment: Segment) -> Bitmap:
        packed = await self.read(segment.id, segment.dead_object) if segment.dead_object else segment.dead_inline
        return Bitmap.unpacked(packed)

    async def lines(self, segment: Segment, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The lines of the texts at the byte ``spans`` (start, end), ascending: by range, or out of the whole when that is
        small."""
        if segment.docs_bytes <= _WHOLE_DOCS_BYTES:
            whole = await self.read(segment.id, DOCS)
            return [whole[start:end] for start, end in spans]
        key = f"{self._prefix}/{segment.id}/{DOCS}"
        groups = _neighbours(spans)
        bodies = await asyncio.gather(*(self._store.objects.get(key, start=group[0][0], end=group[-1][1]) for group in groups))
        return [
            body[start - group[0][0] : end - group[0][0]]
            for group, body in zip(groups, bodies, strict=True)
            for start, end in group
        ]


def _neighbours(spans: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    groups: list[list[tuple[int, int]]] = []
    for span in spans:
        if groups and span[0] - groups[-1][-1][1] <= _GAP_BYTES:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


async def together(work: Iterable[Awaitable[T]], *, at_once: int) -> list[T]:
    """What all of ``work`` comes to, in its order, ``at_once`` of it under way at any time."""
    free = asyncio.Semaphore(at_once)

    async def one(piece: Awaitable[T]) -> T:
        async with free:
            return await piece

    return list(await asyncio.gather(*map(one, work)))
