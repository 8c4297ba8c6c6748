"""JSONL: a document on each line."""

from collections.abc import Iterator, Mapping
from typing import Final

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json
from spass.rag.index.documents import MAX_METADATA_DEPTH
from spass.rag.ingest.checks import Problem, entry_of
from spass.rag.ingest.lines import LineSplitter
from spass.rag.ingest.plan import Entry, FileRefused, Kind, Parts, Plan, Position, Source

_MAX_DEPTH: Final = MAX_METADATA_DEPTH + 4
"""So that of metadata nested too deep the message speaks, as the HTTP route's does."""


class JsonlSurvey:
    """A bad line fails alone, when it is read; so only the ends of lines are looked for here."""

    def __init__(self, start: Position, part_bytes: int) -> None:
        self._parts = Parts(start, part_bytes)
        self._at = start
        self._offset = start.offset  # of the next byte fed
        self._blank = True

    def feed(self, data: bytes, *, final: bool) -> None:
        self._blank = self._blank and (not data or data.isspace())
        counted = 0
        while (end := data.find(b"\n", max(counted, self._parts.wanted - self._offset - 1)) + 1) > 0:
            self._passed(data, counted, end)
            self._parts.may_end(self._at)
            counted = end
        self._passed(data, counted, len(data))
        self._offset += len(data)
        if final and self._blank:
            raise FileRefused("empty_file", "The file holds no line that is not blank.")

    def plan(self) -> Plan:
        return Plan(Kind.JSONL, (), self._parts.until(self._offset))

    def _passed(self, data: bytes, begin: int, end: int) -> None:
        lines = data.count(b"\n", begin, end)
        self._at = Position(self._offset + end, self._at.line + lines, self._at.number + lines)


class JsonlReader:
    def __init__(self, source: Source, start: Position) -> None:
        self._source = source
        self._lines = LineSplitter(start)

    def feed(self, data: bytes, *, final: bool) -> Iterator[Entry]:
        for record in self._lines.feed(data, final=final):
            yield entry_of(record, _fields, self._source)


def _fields(line: bytes) -> Mapping[str, Json]:
    try:
        return read_object(line.decode(), max_depth=_MAX_DEPTH)
    except UnicodeDecodeError:
        raise Problem("not_utf8", "The line is not UTF-8.") from None
    except InvalidJson as error:
        reason = error.reason if error.position is None else f"it is not valid JSON from character {error.position + 1} on"
        raise Problem("invalid_request", f"The line is no document: {reason}.") from None
