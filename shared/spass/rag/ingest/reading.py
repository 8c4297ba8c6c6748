"""Files as streams: one pass to refuse what cannot be read and to plan the parts, then the entries of a part.

Nothing here holds more of a file than one record, or knows where its bytes come from.
"""

from collections.abc import AsyncIterator, Sequence

from spass.rag.ingest.plan import Entry, EntryError, FileRefused, Kind, Part, Plan, Position, Source, kind_of

__all__ = [
    "Entry", "EntryError", "FileRefused", "Kind", "Part", "Plan", "Position", "Source", "entries", "kind_of", "survey",
]  # fmt: skip


async def survey(kind: Kind, blocks: AsyncIterator[bytes], *, part_bytes: int) -> Plan:
    """Read the whole file once, and plan it in parts of about ``part_bytes``.

    Raises:
        FileRefused: it is empty, no text of UTF-8, or a CSV that cannot be read by its header and quotes.
    """
    raise NotImplementedError


def entries(
    kind: Kind, columns: Sequence[str], source: Source, blocks: AsyncIterator[bytes], start: Position, end: int
) -> AsyncIterator[Entry]:
    """What stands in a part of a surveyed file from ``start``, its start or any ``Entry.after`` in it, up to ``end``, the part's.

    ``columns`` are the plan's. ``blocks`` begin at the byte ``start.offset`` and reach to ``end`` at least.
    """
    raise NotImplementedError
