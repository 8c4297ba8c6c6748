"""Plan and read files in blocks of any size."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import pairwise

import pytest

from spass.rag.index.documents import NewDocument
from spass.rag.ingest.plan import Entry, FileKind, FilePlan, IngestRefused, PartRange, Position, UploadError
from spass.rag.ingest.reading import entries, survey

NO_PARTS = 2**40


def cut_in(data: bytes, sizes: int | Sequence[int]) -> list[bytes]:
    """Cut ``data`` into blocks of ``sizes``; repeat the sizes until the end."""
    cycle = [sizes] if isinstance(sizes, int) else list(sizes)
    edges = [0]
    while edges[-1] < len(data):
        edges.append(edges[-1] + cycle[(len(edges) - 1) % len(cycle)])
    return [data[begin:end] for begin, end in pairwise(edges)]


async def streamed(blocks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block


def planned(kind: FileKind, data: bytes, *, part_bytes: int = NO_PARTS, sizes: int | Sequence[int] = 1000) -> FilePlan:
    return asyncio.run(survey(kind, streamed(cut_in(data, sizes)), part_bytes=part_bytes))


def refusal(kind: FileKind, data: bytes, sizes: int | Sequence[int] = 1000) -> tuple[str, int | None, str]:
    """Return the code, line and message of the error that refuses the whole file."""
    with pytest.raises(IngestRefused) as refused:
        planned(kind, data, sizes=sizes)
    error = refused.value.error
    return error.code, error.line, error.message


def read_part(
    plan: FilePlan, part: PartRange, data: bytes, *, name: str = "file", sizes: int | Sequence[int] = 1000
) -> list[Entry]:
    async def collect() -> list[Entry]:
        blocks = streamed(cut_in(data[part.start.offset :], sizes))
        return [entry async for entry in entries(plan.kind, plan.columns, name, blocks, part.start, part.end)]

    return asyncio.run(collect())


def read(kind: FileKind, data: bytes, *, name: str = "file", sizes: int | Sequence[int] = 1000) -> list[Entry]:
    """Return all entries of a file that is not refused."""
    plan = planned(kind, data, sizes=sizes)
    return [entry for part in plan.parts for entry in read_part(plan, part, data, name=name, sizes=sizes)]


def documents(entries: Iterable[Entry]) -> list[NewDocument]:
    assert not (errors := errors_of(entries)), errors
    return [entry.document for entry in entries if entry.document]


def errors_of(entries: Iterable[Entry]) -> list[UploadError]:
    return [entry.error for entry in entries if entry.error]


def rest_of(plan: FilePlan, part: PartRange, after: Position, data: bytes) -> list[Entry]:
    """Return the entries of the part from the position ``after`` on."""
    return read_part(plan, PartRange(after, part.end), data)


def repeated(piece: bytes, total: int) -> Iterator[bytes]:
    """Yield ``piece`` until there are ``total`` bytes."""
    for _ in range(total // len(piece)):
        yield piece
