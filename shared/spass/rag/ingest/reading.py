"""Files as streams: one pass to refuse what cannot be read and to plan the parts, then the entries of a part.

Nothing here holds more of a file than one record, or knows where its bytes come from.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from spass.rag.ingest.blocks import TextGuard, bites
from spass.rag.ingest.csv_rows import CsvReader, CsvSurvey
from spass.rag.ingest.jsonl import JsonlReader, JsonlSurvey
from spass.rag.ingest.plan import Entry, Kind, Plan, Position, Source
from spass.rag.ingest.text import TextReader, TextSurvey


class _Survey(Protocol):
    def feed(self, data: bytes, *, final: bool) -> None: ...

    def plan(self) -> Plan: ...


class _Reader(Protocol):
    def feed(self, data: bytes, *, final: bool) -> Iterator[Entry]: ...


async def survey(kind: Kind, blocks: AsyncIterator[bytes], *, part_bytes: int) -> Plan:
    """Read the whole file once, and plan it in parts of about ``part_bytes``, each of which ends with a record or chunk.

    Raises:
        FileRefused: it is empty, no text of UTF-8, or a CSV whose header or quotes are wrong. Of JSONL a line that is not UTF-8
            is left to be refused alone.
    """
    guard = TextGuard(every_byte=kind is not Kind.JSONL)
    found: _Survey | None = None
    async for data in bites(blocks):
        if passed := guard.passed(data):
            found = found or _survey(kind, Position(guard.offset), part_bytes)
            found.feed(passed, final=False)
    passed = guard.passed(b"", final=True)
    found = found or _survey(kind, Position(guard.offset), part_bytes)
    found.feed(passed, final=True)
    return found.plan()


async def entries(
    kind: Kind, columns: Sequence[str], source: Source, blocks: AsyncIterator[bytes], start: Position, end: int
) -> AsyncIterator[Entry]:
    """What stands in a part of a surveyed file from ``start``, its start or any ``Entry.after`` in it, up to ``end``, the part's.

    ``columns`` are the plan's. ``blocks`` begin at the byte ``start.offset`` and reach to ``end`` at least.

    Raises:
        ValueError: the blocks end before that, or are no UTF-8 where the survey would have refused it.
    """
    reader = _reader(kind, columns, source, start)
    async for data in bites(blocks, end - start.offset):
        for entry in reader.feed(data, final=False):
            yield entry
    for entry in reader.feed(b"", final=True):
        yield entry


def _survey(kind: Kind, start: Position, part_bytes: int) -> _Survey:
    if kind is Kind.JSONL:
        return JsonlSurvey(start, part_bytes)
    return CsvSurvey(start, part_bytes) if kind is Kind.CSV else TextSurvey(kind, start, part_bytes)


def _reader(kind: Kind, columns: Sequence[str], source: Source, start: Position) -> _Reader:
    if kind is Kind.JSONL:
        return JsonlReader(source, start)
    return CsvReader(columns, source, start) if kind is Kind.CSV else TextReader(kind, source, start)
