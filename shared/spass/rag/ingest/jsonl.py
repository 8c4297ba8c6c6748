"""Split JSONL files into lines. Each line contains one document."""

import re
from collections.abc import Mapping
from typing import Final

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json
from spass.rag.index.documents import MAX_METADATA_DEPTH
from spass.rag.ingest.blocks import LineCount
from spass.rag.ingest.plan import IngestRefused, Position
from spass.rag.ingest.records import RecordSplitter

_MAX_DEPTH: Final = MAX_METADATA_DEPTH + 4
"""Larger than the limit of metadata, so that the check of metadata reports the error instead of the parser."""


class LineSplitter(RecordSplitter):
    """Split a file into lines at LF. A CR before the LF counts as a blank."""

    _BLANK_LINES = re.compile(rb"(?:[ \t\r]*+\n)*+")
    _NUMBERED_BY_LINE = True

    def __init__(self, position: Position) -> None:
        super().__init__(position, LineCount(position.line, cr_ends_line=False))

    def _record_end(self, data: bytes, begin: int) -> int | None:
        return data.find(b"\n", begin) + 1 or None


def fields_of_line(line: bytes) -> Mapping[str, Json]:
    """Return the fields of the document on ``line``.

    Raises:
        IngestRefused: the line is not a JSON object in UTF-8.
    """
    try:
        return read_object(line.decode(), max_depth=_MAX_DEPTH)
    except UnicodeDecodeError:
        raise IngestRefused("not_utf8", "The line is not UTF-8.") from None
    except InvalidJson as error:
        reason = error.reason if error.position is None else f"it is not valid JSON from character {error.position + 1} on"
        raise IngestRefused("invalid_request", f"The line is not a document: {reason}.") from None
