"""Reading CSV: each row is a document; an invalid row is an error, an invalid header or quote refuses the file."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.rag.index.documents import MAX_TEXT_BYTES
from spass.rag.ingest.plan import FileKind, Position
from spass.rag.ingest.records import MAX_RECORD_BYTES
from tests.unit.rag.ingest.sample_files import documents, errors_of, planned, read, refusal


def test_rows_are_documents() -> None:
    data = 'lang,text,id,note\nde,"Hallo, ""Welt"" — 漢",a:1,\n,plain,,x y\n'.encode()
    first, second = documents(read(FileKind.CSV, data, name="table.csv"))
    assert (first.id, first.text, first.metadata) == ("a:1", 'Hallo, "Welt" — 漢', {"lang": "de"})
    assert (second.id, second.text, second.metadata) == ("table.csv#2", "plain", {"note": "x y"})


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["", "\n"])
@pytest.mark.parametrize("sizes", [1, 2, 1000])
def test_rows_may_end_with_lf_crlf_or_cr(newline: str, last: str, sizes: int) -> None:
    data = newline.join(["", "text,n", "one,1", "", '"two\nlines",2', "three,", ""]).rstrip() + last
    entries = read(FileKind.CSV, data.encode(), sizes=sizes)
    assert [(document.id, document.text) for document in documents(entries)] == [
        ("file#1", "one"), ("file#2", "two\nlines"), ("file#3", "three"),
    ]  # fmt: skip
    assert [entry.next_position.line for entry in entries] == [4, 7, 7 + bool(last)]


def test_an_error_has_the_line_on_which_its_row_begins() -> None:
    data = b'text,id\r\n"a\r\nb\r\n",1\r\n\r\nshort\r\n"c\rd",\r\nlong,2,3\r\n'
    entries = read(FileKind.CSV, data, sizes=3)
    assert [(error.line, error.code) for error in errors_of(entries)] == [(6, "csv_bad_row"), (9, "csv_bad_row")]
    assert [entry.document and entry.document.id for entry in entries] == ["1", None, "file#3", None]


BAD = {
    "only": ("csv_bad_row", "Cells in the row: 1; in the header: 3."),
    "x,a,b,c": ("csv_bad_row", "Cells in the row: 4; in the header: 3."),
    '"x"y,a,b': ("csv_bad_row", "closing quote"),
    ",a,b": ("invalid_request", "text: "),
    '" ",a,b': ("invalid_request", "text: must hold more than blanks"),
    "x,a b,c": ("invalid_request", "id: "),
    "x,file#1,c": ("invalid_request", "id: "),
    "ü" * (MAX_TEXT_BYTES // 2) + "x,a,b": ("document_too_large", "text has 8193 bytes"),
    "x,a," + "y" * 2048: ("document_too_large", "metadata has "),
    "x,a," + "y" * MAX_RECORD_BYTES: ("line_too_long", "is longer than"),
    'x,a,"' + '""\n' * MAX_RECORD_BYTES + '"': ("line_too_long", "is longer than"),
}


@pytest.mark.parametrize(
    ("bad", "code", "message"), [(bad, *expected) for bad, expected in BAD.items()], ids=[str(n) for n in range(len(BAD))]
)
@pytest.mark.parametrize("sizes", [1000, 10**6])
def test_other_rows_are_read_if_one_row_is_invalid(bad: str, code: str, message: str, sizes: int) -> None:
    entries = read(FileKind.CSV, f"text,id,note\nbefore,,\n{bad}\nbehind,,\n".encode(), sizes=sizes)
    assert [entry.document and entry.document.text for entry in entries] == ["before", None, "behind"]
    [error] = errors_of(entries)
    assert (error.line, error.code) == (3, code)
    assert message in error.message
    assert entries[-1].document is not None
    assert entries[-1].document.id == "file#3"


def test_a_quote_inside_an_unquoted_cell_is_text() -> None:
    [document] = documents(read(FileKind.CSV, b'text,size\nA disk of 5" and more,3.5"\n'))
    assert (document.text, document.metadata) == ('A disk of 5" and more', {"size": '3.5"'})


HEADERS = {
    "id,note\na,b\n": ("csv_no_text_column", 1, "has no column 'text'"),
    "\n\nText,id\na,b\n": ("csv_no_text_column", 3, "'Text' is a different name"),
    "text;id\na;b\n": ("csv_no_text_column", 1, "semicolons"),
    "id\ttext\na\tb\n": ("csv_no_text_column", 1, "tabs"),
    "just words\n": ("csv_no_text_column", 1, "has no column"),
    "text,id,text\na,b,c\n": ("csv_bad_header", 1, "'text' is in the header twice"),
    "text,,id\na,b,c\n": ("csv_bad_header", 1, "Column 2 has no name"),
    'text," "\na,b\n': ("csv_bad_header", 1, "Column 2 has no name"),
    '"text"x,id\na,b\n': ("csv_bad_header", 1, "closing quote"),
    "text," + "n" * 9000 + "\na,b\n": ("csv_bad_header", 1, "longer than 8192"),
    "text," + "n" * MAX_RECORD_BYTES + "\na,b\n": ("csv_bad_header", 1, "longer than 8192"),
    "text,id": ("empty_file", None, "no row"),
    "text,id\r\n\r\n": ("empty_file", None, "no row"),
    'text,id\r\n"a\r\nb",c\r\nd,e\r\nf,"g\r\nh,i\r\n': ("csv_unclosed_quote", 5, "line 5"),
    'text\nfine\n"never closed\nand on\n': ("csv_unclosed_quote", 3, "line 3"),
    '"text\nfine\n': ("csv_unclosed_quote", 1, "line 1"),
    'text\nfine\n"' + "x" * 2 * MAX_RECORD_BYTES: ("csv_unclosed_quote", 3, "line 3"),
}


@pytest.mark.parametrize(("data", "code", "line", "message"), [(data, *expected) for data, expected in HEADERS.items()])
@pytest.mark.parametrize("sizes", [7, 10**6])
def test_a_bad_header_or_an_unclosed_quote_refuses_the_file(
    data: str, code: str, line: int | None, message: str, sizes: int
) -> None:
    error = refusal(FileKind.CSV, data.encode(), sizes)
    assert error[:2] == (code, line)
    assert message in error[2]


def test_the_plan_has_the_columns() -> None:
    plan = planned(FileKind.CSV, b'id,"text","a,b"\nx,y,z\nx,y,z\n', part_bytes=1)
    assert plan.columns == ("id", "text", "a,b")
    assert [(part.start, part.end) for part in plan.parts] == [(Position(16, 2, 1), 22), (Position(22, 3, 2), 28)]


CELL = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from('",\r\n'), max_size=10)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=10), st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 20))
def test_rows_that_the_csv_module_writes_are_read_back(rows: list[tuple[str, str]], newline: str, size: int) -> None:
    written = io.StringIO(newline="")
    broken = any(end in cell for row in rows for cell in row for end in "\r\n")
    # Python's own writer quotes only the end of line that it writes.
    writer = csv.writer(written, lineterminator=newline, quoting=csv.QUOTE_ALL if broken else csv.QUOTE_MINIMAL)
    writer.writerow(["text", "note"])
    writer.writerows([(f"t{text}", note) for text, note in rows])
    rows_read = documents(read(FileKind.CSV, written.getvalue().encode(), sizes=size))
    assert [(document.text, document.metadata.get("note", "")) for document in rows_read] == [
        (f"t{text}", note) for text, note in rows
    ]
