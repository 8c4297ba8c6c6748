"""The objects of a workspace's generation in the bucket: packs and trees. An object never changes."""

import asyncio
import zlib
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

import anyio.to_thread

from spass.core.errors import InternalError
from spass.core.ids import TenantId, WorkspaceId, random_suffix
from spass.store.bucket import ObjectMissing
from spass.store.tenant_store import TenantStore
from spass.workspaces.change import Body
from spass.workspaces.head import read_head, workspace_not_found
from spass.workspaces.tree import Tree, TreeFile, decode_tree

_RAW_DEFLATE = -15  # zlib's window bits for a stream without header and checksum, as a zip holds it


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack, and its files by SHA-256."""

    name: str
    content: bytes
    files: Mapping[str, TreeFile]


def encode_pack(name: str, bodies: Iterable[Body]) -> Pack:
    """Return the pack of ``bodies``. A body that does not shrink is stored as it is."""
    parts: list[bytes] = []
    files: dict[str, TreeFile] = {}
    offset = 0
    for body in bodies:
        part = _deflate(body.content)
        if len(part) >= body.size:
            part = body.content
        pack = name if part else ""
        files[body.sha256] = TreeFile(body.sha256, body.size, pack, offset if part else 0, len(part), zlib.crc32(body.content))
        parts.append(part)
        offset += len(part)
    return Pack(name, b"".join(parts), files)


def decode_body(file: TreeFile, stored: bytes) -> bytes:
    """Return the body of ``file``, given its bytes in the pack. Raise InternalError if these are not its bytes."""
    try:
        body = zlib.decompress(stored, _RAW_DEFLATE, file.size) if file.is_deflated else stored
    except zlib.error:
        body = None
    if body is None or len(body) != file.size or zlib.crc32(body) != file.crc32:
        raise InternalError(f"The bytes of a file of {file.size} bytes in {file.pack!r} are damaged.")
    return body


def _deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=_RAW_DEFLATE)
    return compressor.compress(body) + compressor.flush()


FOLDER: Final = "ws/"
_VERSION_DIGITS: Final = 10
_TREE_BUDGET: Final = 48 * 2**20  # bytes; about twenty trees of 5,000 files
_MAX_GAP: Final = 64 * 2**10  # bytes; a request costs as much time as reading this many
_MAX_RANGE: Final = 4 * 2**20  # bytes; the largest file
_MAX_AHEAD: Final = 24  # ranges in flight
_MAX_BYTES_AHEAD: Final = 16 * 2**20


def object_name(version: int, kind: str) -> str:
    """Return a new name for an object that a writer puts while it tries to make ``version``."""
    return f"{version:0{_VERSION_DIGITS}d}-{random_suffix()}.{kind}"


def version_of(name: str) -> int:
    """Return the version that the object's writer tried to make first. A later version may name the object."""
    return int(name[:_VERSION_DIGITS])


class TreeName(NamedTuple):
    """The tree in an object of one tenant."""

    tenant: TenantId
    key: str


class TreeCache:
    """Decoded trees in memory, the most recently used ones within a budget of bytes."""

    def __init__(self, budget: int = _TREE_BUDGET) -> None:
        self._budget = budget
        self._used = 0
        self._trees: OrderedDict[TreeName, Tree] = OrderedDict()

    def get(self, name: TreeName) -> Tree | None:
        tree = self._trees.get(name)
        if tree is not None:
            self._trees.move_to_end(name)
        return tree

    def put(self, name: TreeName, tree: Tree) -> None:
        if name in self._trees or tree.memory_bytes > self._budget:
            return
        self._trees[name] = tree
        self._used += tree.memory_bytes
        while self._used > self._budget:
            _, evicted = self._trees.popitem(last=False)
            self._used -= evicted.memory_bytes


class StoredBody(NamedTuple):
    """The bytes of a file as its pack holds them."""

    file: TreeFile
    content: bytes


@dataclass(frozen=True, slots=True)
class WorkspaceObjects:
    """The objects of one generation.

    Methods that read raise WorkspaceNotFound if the sweep removed the generation in the meantime.
    """

    store: TenantStore
    workspace: WorkspaceId
    generation: str
    cache: TreeCache

    async def put(self, name: str, content: bytes) -> None:
        await self.store.objects.put(self._key(name), content)

    def cache_tree(self, name: str, tree: Tree) -> None:
        self.cache.put(TreeName(self.store.tenant, self._key(name)), tree)

    async def tree(self, name: str) -> Tree:
        """Return the tree in the object ``name``, from memory if possible."""
        tree = self.cache.get(TreeName(self.store.tenant, self._key(name)))
        if tree is None:
            content = await self._get(name)
            tree = await anyio.to_thread.run_sync(decode_tree, content)
            self.cache_tree(name, tree)
        return tree

    async def body(self, file: TreeFile) -> bytes:
        """Return the body of one file. This is one ranged read."""
        return decode_body(file, await self._get(file.pack, file.offset, file.offset + file.length) if file.pack else b"")

    async def bodies(self, files: Iterable[TreeFile]) -> Mapping[str, bytes]:
        """Return the bodies of ``files`` by SHA-256. Read neighbours in one range and ranges in parallel."""
        bodies: dict[str, bytes] = {}
        async with aclosing(self.stored_bodies(files)) as stored:
            async for file, content in stored:
                bodies[file.sha256] = decode_body(file, content)
        return bodies

    async def stored_bodies(self, files: Iterable[TreeFile]) -> AsyncGenerator[StoredBody, None]:
        """Yield the bytes of each of ``files`` once, in the order of packs and offsets. Read neighbours in one range and ranges
        in parallel, at most 16 MiB ahead."""
        waiting = deque(_ranges(files))
        running: deque[tuple[_Range, asyncio.Task[bytes]]] = deque()
        ahead = 0
        try:
            while waiting or running:
                while waiting and (not running or (len(running) < _MAX_AHEAD and ahead + waiting[0].size <= _MAX_BYTES_AHEAD)):
                    next_range = waiting.popleft()
                    running.append((next_range, asyncio.create_task(self._read(next_range))))
                    ahead += next_range.size
                read, task = running.popleft()
                content = await task
                for file in read.files:
                    yield StoredBody(file, content[file.offset - read.start : file.offset - read.start + file.length])
                ahead -= read.size
        finally:
            for _, task in running:
                task.cancel()
            await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def _read(self, wanted: "_Range") -> bytes:
        return await self._get(wanted.pack, wanted.start, wanted.end) if wanted.pack else b""

    async def _get(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        try:
            return await self.store.objects.get(self._key(name), start=start, end=end)
        except ObjectMissing:
            if (await read_head(self.store, self.workspace)).generation != self.generation:
                raise workspace_not_found(self.workspace) from None
            raise InternalError(f"The object {name!r} of a version is missing.") from None

    def _key(self, name: str) -> str:
        return f"{FOLDER}{self.workspace}/{self.generation}/{name}"


@dataclass(slots=True)
class _Range:
    """The bytes from ``start`` to ``end`` of a pack, which hold ``files``."""

    pack: str
    start: int
    end: int
    files: list[TreeFile]

    @property
    def size(self) -> int:
        return self.end - self.start


def _ranges(files: Iterable[TreeFile]) -> Sequence[_Range]:
    ranges: list[_Range] = []
    for file in sorted({(file.pack, file.offset, file.sha256): file for file in files}.values(), key=_place):
        end = file.offset + file.length
        last = ranges[-1] if ranges else None
        if last and last.pack == file.pack and file.offset <= last.end + _MAX_GAP and end - last.start <= _MAX_RANGE:
            last.end = max(last.end, end)
            last.files.append(file)
        else:
            ranges.append(_Range(file.pack, file.offset, end, [file]))
    return ranges


def _place(file: TreeFile) -> tuple[str, int]:
    return file.pack, file.offset
