"""Reading JSONL: a valid line is a document, an invalid one is an error, by the rules of the HTTP route."""

import json

import pytest

from spass.rag.index.documents import MAX_METADATA_BYTES, MAX_TEXT_BYTES
from spass.rag.ingest.plan import FileKind, Position
from spass.rag.ingest.records import MAX_RECORD_BYTES
from tests.unit.rag.ingest.sample_files import documents, errors_of, planned, read


def line(**fields: object) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def test_lines_are_documents() -> None:
    data = line(id="a", text="Erste") + b"\r\n" + line(text="Zweite 漢", metadata={"n": 1.5, "tags": ["x", None]})
    first, second = documents(read(FileKind.JSONL, data, name="docs.jsonl"))
    assert (first.id, first.text, first.metadata) == ("a", "Erste", {})
    assert (second.id, second.text, second.metadata) == ("docs.jsonl#3", "Zweite 漢", {"n": 1.5, "tags": ["x", None]})


def test_lines_may_end_with_crlf_and_the_last_line_needs_no_end() -> None:
    data = b'{"text": "a"}\r\n\r\n {"text": "b"} \r\n{"text": "c"}'
    entries = read(FileKind.JSONL, data)
    assert [(document.id, document.text) for document in documents(entries)] == [
        ("file#1", "a"),
        ("file#3", "b"),
        ("file#4", "c"),
    ]
    assert [entry.next_position for entry in entries] == [Position(15, 2, 2), Position(34, 4, 4), Position(len(data), 4, 4)]


BAD = {
    b"{": ("invalid_request", "not valid JSON"),
    b'{"text": "x"} {"text": "y"}': ("invalid_request", "from character 15 on"),
    b"[]": ("invalid_request", "one JSON object"),
    b'"text"': ("invalid_request", "one JSON object"),
    b"{}": ("invalid_request", "text: is missing, but it is required"),
    b'{"text": ""}': ("invalid_request", "text: "),
    b'{"text": " \\n "}': ("invalid_request", "text: must hold more than blanks"),
    b'{"text": null}': ("invalid_request", "text: "),
    b'{"text": 7}': ("invalid_request", "text: "),
    b'{"text": "x", "id": null}': ("invalid_request", "id: "),
    b'{"text": "x", "id": 7}': ("invalid_request", "id: "),
    b'{"text": "x", "id": "a b"}': ("invalid_request", "id: "),
    b'{"text": "x", "id": "file#1"}': ("invalid_request", "id: "),
    b'{"text": "x", "metadata": []}': ("invalid_request", "metadata: "),
    b'{"text": "x", "title": "y"}': ("invalid_request", "title: "),
    b'{"text": "x", "text": "y"}': ("invalid_request", "'text' stands twice"),
    b'{"text": "x", "metadata": {"n": NaN}}': ("invalid_request", "NaN"),
    b'{"text": "x", "metadata": {"n": 1e999}}': ("invalid_request", "too large"),
    b'{"text": "half \\ud800"}': ("invalid_request", "surrogate"),
    b'{"text": "x", "metadata": ' + b'{"a":' * 40 + b"1" + b"}" * 41: ("invalid_request", "nested deeper"),
    b'{"text": "x", "metadata": ' + b'{"a":' * 9000 + b"1" + b"}" * 9001: ("invalid_request", "nested deeper"),
    b'{"text": "Gr\xfc\xdfe"}': ("not_utf8", "not UTF-8"),
    b'{"text": "' + b"x" * (MAX_TEXT_BYTES + 1) + b'"}': ("document_too_large", "text has 8193 bytes"),
    '{"text": "ü'.encode() * 1 + b"x" * (MAX_TEXT_BYTES - 1) + b'"}': ("document_too_large", "text has 8193 bytes"),
    b'{"text": "x", "metadata": {"a": "' + b"y" * MAX_METADATA_BYTES + b'"}}': ("document_too_large", "metadata has "),
    b'{"text": "' + b"x" * MAX_RECORD_BYTES + b'"}': ("line_too_long", str(MAX_RECORD_BYTES)),
}


@pytest.mark.parametrize(
    ("bad", "code", "message"), [(bad, *expected) for bad, expected in BAD.items()], ids=[str(n) for n in range(len(BAD))]
)
@pytest.mark.parametrize("sizes", [1000, 10**6])
def test_other_lines_are_read_if_one_line_is_invalid(bad: bytes, code: str, message: str, sizes: int) -> None:
    entries = read(FileKind.JSONL, b'{"text": "before"}\r\n\n' + bad + b'\r\n{"text": "behind"}\n', sizes=sizes)
    assert [entry.document and entry.document.text for entry in entries] == ["before", None, "behind"]
    [error] = errors_of(entries)
    assert (error.line, error.code) == (3, code)
    assert message in error.message
    assert len(error.message) <= 300


def test_the_largest_document_may_have_every_character_escaped() -> None:
    text = "\\u0041" * MAX_TEXT_BYTES
    metadata = '{"a": "' + "\\u0042" * (MAX_METADATA_BYTES - len('{"a":""}')) + '"}'
    written = f'  {{"id": "{"i" * 128}", "text": "{text}", "metadata": {metadata}}}\n'.encode()
    [document] = documents(read(FileKind.JSONL, written))
    assert document.text == "A" * MAX_TEXT_BYTES


def test_parts_begin_at_lines() -> None:
    plan = planned(FileKind.JSONL, b'{"text": "a"}\n' * 3 + b"\n\n" + b'{"text": "b"}\n', part_bytes=20)
    assert [part.start for part in plan.parts] == [Position(), Position(28, 3, 3), Position(58, 7, 7)][: len(plan.parts)]
    assert plan.parts[-1].end == 58


def test_a_message_cuts_a_long_key() -> None:
    [error] = errors_of(read(FileKind.JSONL, line(text="x", **{"k" * 5000: 1})))
    assert "k" * 64 in error.message
    assert "k" * 65 not in error.message
