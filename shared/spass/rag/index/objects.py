"""Read and write the objects of segments, through the cache of this process."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from spass.core.ids import IndexId
from spass.rag.index.cache import Body, ObjectCache, ObjectName
from spass.rag.index.ids import Bitmap, Ids
from spass.rag.index.manifest import Segment
from spass.store.tenant_store import TenantStore

VECTORS: Final = "vectors.npy"
CODES: Final = "codes"
IDS: Final = "ids"
META: Final = "meta"
DOCS: Final = "docs.jsonl"
OFFSETS: Final = "offsets.npy"

HEADER_BYTES: Final = 128  # of the two arrays
BLOCK_BYTES: Final = 8 * 2**20  # of vectors that are read, cached and scanned together
CODE_BOUND_BYTES: Final = 8  # of a row's scale and residual in ``codes``
_CODE_BLOCK: Final = 4  # blocks of vectors whose codes are one block: about as many bytes
# With other values of the last three, stored codes would be read wrongly: that needs a new format in ``manifest.Segment``.
HEAD_BYTES: Final = 64 * 1024  # of ``meta`` that are read first: all of a small one, or the directory of a large one
_WHOLE_DOCS_BYTES: Final = 256 * 1024  # a smaller docs.jsonl is read and cached whole: one read serves all later queries
_WHOLE_OFFSETS_ROWS: Final = 32_768  # the offsets of fewer rows are read and cached whole
_GAP_BYTES: Final = 32 * 1024  # ranges with a smaller gap are one read
_OFFSET_BYTES: Final = 8
_OFFSETS: Final = struct.Struct("<QQ")
_FLOAT_BYTES: Final = 4

# These are cached whole up to so many bytes; other objects are always cached whole.
_LARGE: Final = {VECTORS: BLOCK_BYTES + HEADER_BYTES, CODES: 0, DOCS: _WHOLE_DOCS_BYTES, META: HEAD_BYTES}


class Block(NamedTuple):
    """Rows of a segment that are read together: ``rows`` rows from ``first`` on, which are the bytes from ``start`` up to ``end``
    of its object ``part``."""

    segment: str
    part: str
    first: int
    rows: int
    start: int
    end: int
    is_whole_object: bool


def vector_block_rows(dimensions: int) -> int:
    """Return the number of rows of a block of vectors. The last block of a segment may have fewer."""
    return max(1, BLOCK_BYTES // (dimensions * _FLOAT_BYTES))


def code_block_rows(dimensions: int) -> int:
    """Return the number of rows of a block of codes. The last block of a segment may have fewer."""
    return _CODE_BLOCK * vector_block_rows(dimensions)


def vector_blocks(segment: Segment, dimensions: int) -> list[Block]:
    """Return the blocks of the vectors of ``segment`` in the order of rows. The first begins with the header of the array."""
    return [vector_block(segment, dimensions, number) for number in range(-(-segment.rows // vector_block_rows(dimensions)))]


def vector_block(segment: Segment, dimensions: int, number: int) -> Block:
    """Return the block ``number`` of ``vector_blocks``."""
    rows = vector_block_rows(dimensions)
    return _block(segment, VECTORS, number * rows, rows, dimensions * _FLOAT_BYTES, HEADER_BYTES)


def code_blocks(segment: Segment, dimensions: int) -> list[Block]:
    """Return the blocks of the codes of ``segment`` in the order of rows. Each consists of whole blocks of vectors."""
    rows, width = code_block_rows(dimensions), dimensions + CODE_BOUND_BYTES
    return [_block(segment, CODES, first, rows, width, 0) for first in range(0, segment.rows, rows)]


def _block(segment: Segment, part: str, first: int, block_rows: int, width: int, header: int) -> Block:
    end = min(first + block_rows, segment.rows)
    start = header + first * width if first else 0
    return Block(segment.id, part, first, end - first, start, header + end * width, segment.rows <= block_rows)


class SegmentObjects:
    """The objects of one generation of an index: ``rag/<index>/<generation>/<segment>/…`` below the tenant's prefix.

    Every read may raise ``ObjectMissing``: the segment became garbage and was swept after the manifest was read.
    """

    def __init__(self, store: TenantStore, index: IndexId, generation: str, cache: ObjectCache) -> None:
        self.generation = generation
        self._store = store
        self._index = index
        self._prefix = f"rag/{index}/{generation}"
        self.cache = cache
        self._large = asyncio.Semaphore(1)

    async def read(self, segment: str, part: str) -> bytes:
        """Read a whole object."""
        name = self._name(segment, part)
        if part not in _LARGE:
            return await self._read_cached(name)
        body = self._cached(name)
        if body is None:
            body = await self._store.objects.get(name.key)
            self._put_in_cache(name, part, body)
        return body

    async def _read_cached(self, name: ObjectName) -> bytes:
        """Read a whole object through the cache, whatever its size. Concurrent callers share one read."""
        return await self._load(name, lambda: self._store.objects.get(name.key))

    def _cached(self, name: ObjectName) -> bytes | None:
        body = self.cache.get(name)
        return None if body is None else bytes(body)  # the same object, if it is bytes

    async def _load(self, name: ObjectName, read: Callable[[], Awaitable[bytes]]) -> bytes:
        return bytes(await self.cache.load(name, read))

    @property
    def log_fields(self) -> dict[str, str]:
        """The tenant and the index, for a line of the log."""
        return {"tenant": self._store.tenant, "index": self._index}

    async def write(self, segment: str, parts: Mapping[str, bytes]) -> None:
        """Put the objects of a new segment, or a new deletion bitmap. They are cached, because the next write reads them."""

        async def put(part: str, body: bytes) -> None:
            name = self._name(segment, part)
            await self._store.objects.put(name.key, body)
            self._put_in_cache(name, part, body)

        await asyncio.gather(*map(put, parts, parts.values()))

    def _name(self, segment: str, part: str) -> ObjectName:
        return ObjectName(self._store.tenant, f"{self._prefix}/{segment}/{part}")

    def _put_in_cache(self, name: ObjectName, part: str, body: bytes) -> None:
        """Cache a whole object, unless it is so large that it is cached in parts or not at all."""
        if part not in _LARGE or len(body) <= _LARGE[part]:
            self.cache.put(name, body)

    async def ids(self, segment: Segment) -> Ids:
        return Ids(await self.read(segment.id, IDS))

    async def deletion_bitmap(self, segment: Segment) -> Bitmap:
        packed = await self.read(segment.id, segment.bitmap_object) if segment.bitmap_object else segment.inline_bitmap
        return Bitmap.unpacked(packed)

    def is_cached(self, block: Block) -> bool:
        return self._block_name(block) in self.cache

    def cached_block(self, block: Block) -> Body | None:
        """Return the bytes of ``block`` if they are cached."""
        return self.cache.get(self._block_name(block))

    async def block(self, block: Block) -> Body:
        """Read the bytes of ``block``, through the cache."""
        return await self.load_block(block, lambda: self.read_block(block))

    async def read_block(self, block: Block) -> bytes:
        """Read the bytes of ``block`` from the bucket."""
        return await self._store.objects.get(self._name(block.segment, block.part).key, start=block.start, end=block.end)

    async def load_block(self, block: Block, read: Callable[[], Awaitable[Body]]) -> Body:
        """Return the cached bytes of ``block``, or those that ``read`` returns, which are cached. Concurrent callers share one
        read."""
        return await self.cache.load(self._block_name(block), read)

    async def vector(self, segment: Segment, row: int, dimensions: int) -> bytes:
        """Read the bytes of one vector. They come from its block if that is cached; otherwise only they are read."""
        width = dimensions * _FLOAT_BYTES
        block = vector_block(segment, dimensions, row // vector_block_rows(dimensions))
        if cached := self.cached_block(block):
            start = HEADER_BYTES + row * width - block.start
            return cached[start : start + width]
        (piece,) = await self.vectors(segment, [row], dimensions)
        return piece

    async def vectors(self, segment: Segment, rows: Sequence[int], dimensions: int) -> list[bytes]:
        """Read the bytes of the vectors of ``rows``, which are ascending. Rows that are near each other are one read."""
        width = dimensions * _FLOAT_BYTES
        starts = [HEADER_BYTES + row * width for row in rows]
        return await self._ranges(segment, VECTORS, [(start, start + width) for start in starts])

    def _block_name(self, block: Block) -> ObjectName:
        name = block.part if block.is_whole_object else _range_name(block.part, block.start, block.end)
        return self._name(block.segment, name)

    async def _range(self, segment: str, part: str, start: int, end: int) -> bytes:
        """Read a range of an object of which the same ranges are always read."""
        key = self._name(segment, part).key
        name = self._name(segment, _range_name(part, start, end))
        return await self._load(name, lambda: self._store.objects.get(key, start=start, end=end))

    async def meta_head(self, segment: Segment) -> bytes:
        """Read the beginning of ``meta``: at least 64 KiB, or all of it."""
        whole = self._cached(self._name(segment.id, META))
        return whole if whole is not None else await self._range(segment.id, META, 0, HEAD_BYTES)

    async def meta_range(self, segment: Segment, start: int, end: int) -> bytes:
        """Read the bytes from ``start`` up to ``end`` of ``meta``."""
        head = await self.meta_head(segment)
        if end <= len(head):
            return head[start:end]
        if end - start <= BLOCK_BYTES:
            return await self._range(segment.id, META, start, end)
        async with self._large:  # one at a time, because it may be larger than the memory for reads
            return await self._range(segment.id, META, start, end)

    async def derived(self, segment: Segment, name: str, compute: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the result of ``compute``, which depends only on objects of the segment. It is cached under ``name``."""
        return await self._load(self._name(segment.id, f"{name}#"), compute)

    async def lines(self, segment: Segment, rows: Sequence[int]) -> list[bytes]:
        """Read the lines of docs.jsonl of ``rows``, which are ascending."""
        spans = await self._spans(segment, rows)
        if segment.docs_bytes > _WHOLE_DOCS_BYTES:
            return await self._ranges(segment, DOCS, spans)
        whole = await self._read_cached(self._name(segment.id, DOCS))
        return [whole[start:end] for start, end in spans]

    async def _spans(self, segment: Segment, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return (start, end) in bytes of the lines of ``rows``."""
        if segment.rows <= _WHOLE_OFFSETS_ROWS:
            offsets = memoryview(await self.read(segment.id, OFFSETS))[HEADER_BYTES:].cast("Q")
            return [(offsets[row], offsets[row + 1]) for row in rows]
        starts = [HEADER_BYTES + row * _OFFSET_BYTES for row in rows]
        pairs = await self._ranges(segment, OFFSETS, [(start, start + 2 * _OFFSET_BYTES) for start in starts])
        return [_OFFSETS.unpack(pair) for pair in pairs]

    async def _ranges(self, segment: Segment, part: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read small ranges of a large object, and cache each of them."""
        names = [self._name(segment.id, _range_name(part, start, end)) for start, end in spans]
        pieces = {start: self._cached(name) for (start, _), name in zip(spans, names, strict=True)}
        key = self._name(segment.id, part).key
        groups = _group_adjacent([span for span in spans if pieces[span[0]] is None])
        bodies = await asyncio.gather(*(self._store.objects.get(key, start=group[0][0], end=group[-1][1]) for group in groups))
        for group, body in zip(groups, bodies, strict=True):
            for start, end in group:
                pieces[start] = body[start - group[0][0] : end - group[0][0]]
        in_order = [pieces[start] or b"" for start, _ in spans]
        for name, piece in zip(names, in_order, strict=True):
            self.cache.put(name, piece)
        return in_order


def _range_name(part: str, start: int, end: int) -> str:
    return f"{part}@{start}-{end}"


def _group_adjacent(spans: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Group ``spans``, which are ascending, so that each group is one read."""
    groups: list[list[tuple[int, int]]] = []
    for span in spans:
        if groups and span[0] - groups[-1][-1][1] <= _GAP_BYTES:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups
