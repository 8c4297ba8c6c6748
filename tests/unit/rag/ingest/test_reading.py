"""Reading files of every kind: the sizes of blocks and parts, and interruptions, do not change the entries."""

import asyncio
import csv
import io
import json
import re
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.ids import DOCUMENT_ID
from spass.rag.index.documents import MAX_METADATA_BYTES, metadata_json
from spass.rag.ingest.plan import Entry, FileKind, PartRange, Position, kind_of
from spass.rag.ingest.reading import entries, survey
from spass.rag.ingest.records import document_id, metadata_name
from spass.store.codec import decode, encode
from tests.unit.rag.ingest.sample_files import NO_PARTS, planned, read, read_part, refusal, repeated, rest_of, streamed

NEWLINES = ("\n", "\r\n")
LINES = st.one_of(
    st.builds(lambda text: json.dumps({"text": text}, ensure_ascii=False), st.text(max_size=20)),
    st.builds(lambda text: json.dumps({"id": "a:1", "text": "x", "metadata": {"k": text}}), st.text(max_size=5)),
    st.sampled_from(["", " ", "{", "[]", '{"text": 1}', "ü", '{"text": "x"}', '{"text": "' + "y" * 9000 + '"}']),
)
CELLS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8), st.sampled_from('",\n\r')
)
PIECES = st.sampled_from(
    [
        "# Heading",
        "## Über etwas",
        "Title\n=====",
        "Title\r\n---",
        "```",
        "```python",
        "~~~",
        "    # indented",
        "- item",
        "| a | b |",
        "# ",
        "Short words.",
        "A sentence, e.g. this one! Is it? Yes … it is.",
        "漢字かな交じり文。もう一つ。",
        "z. B. so. Und so.",
        "word " * 130,
        "Long sentences stand here, one after the other. " * 30,
        "x" * 1500,
        "漢" * 700,
        "code = 1  # no heading\n" * 80,
        "line without an end\n" * 70,
        "\u00a0",
        "\u3000" * 40,
        "\r\n" * 50,
        "\u2028",
        "",
        " ",
        " \t" * 40,
        "\r",
        "<!-- -->",
        "a",
        "Paragraph of some words. " * 12,
    ]
)
JOINTS = st.sampled_from(["\n", "\n\n", "\r\n", "\r\n\r\n", " ", "\r", "\n \n\n", ""])


@st.composite
def jsonl(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(LINES, max_size=12))
    return draw(st.sampled_from(NEWLINES)).join([*lines, '{"text": "last"}']).encode() + draw(
        st.sampled_from([b"", b"\n", b"\n \n"])
    )


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator=draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n"])))
    writer.writerow(["id", "text", "note"])
    for row in draw(st.lists(st.lists(CELLS, min_size=2, max_size=4), max_size=8)):
        writer.writerow(row)
    writer.writerow(["", "last", ""])
    return written.getvalue().encode()


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    pieces = draw(st.lists(st.tuples(PIECES, JOINTS), max_size=25))
    return draw(st.sampled_from(["", "\ufeff", "\n"])).encode() + ("".join(chain(*pieces)) + "end").encode()


FILES = st.one_of(
    st.tuples(st.just(FileKind.JSONL), jsonl()),
    st.tuples(st.just(FileKind.CSV), tables()),
    st.tuples(st.sampled_from([FileKind.TEXT, FileKind.MARKDOWN]), texts()),
)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@given(FILES, SIZES)
def test_the_size_of_the_blocks_changes_nothing(file: tuple[FileKind, bytes], sizes: Sequence[int]) -> None:
    kind, data = file
    assert planned(kind, data, part_bytes=500, sizes=sizes) == planned(kind, data, part_bytes=500, sizes=NO_PARTS)
    assert read(kind, data, sizes=sizes) == read(kind, data, sizes=NO_PARTS)


@given(FILES, st.integers(1, 4000))
def test_the_parts_together_have_the_entries_of_the_whole_file(file: tuple[FileKind, bytes], part_bytes: int) -> None:
    kind, data = file
    plan = planned(kind, data, part_bytes=part_bytes)
    assert [part.end for part in plan.parts] == [*(part.start.offset for part in plan.parts[1:]), len(data)]
    assert [entry for part in plan.parts for entry in read_part(plan, part, data)] == read(kind, data)


@given(FILES, st.integers(1, 4000), st.integers(0, 99))
def test_reading_can_continue_after_any_entry(file: tuple[FileKind, bytes], part_bytes: int, chosen: int) -> None:
    kind, data = file
    plan = planned(kind, data, part_bytes=part_bytes)
    part = plan.parts[chosen % len(plan.parts)]
    part_entries = read_part(plan, part, data)
    for number, entry in enumerate(part_entries):
        stored = json.loads(json.dumps(encode(entry.next_position)))
        assert rest_of(plan, part, decode(Position, stored), data) == part_entries[number + 1 :]


@given(FILES)
def test_positions_grow_and_do_not_pass_the_end_of_the_file(file: tuple[FileKind, bytes]) -> None:
    kind, data = file
    after = [entry.next_position for entry in read(kind, data)]
    assert all(one.offset < other.offset and one.line <= other.line for one, other in pairwise(after))
    assert after[-1].offset <= len(data)


def test_parts_have_about_the_requested_size() -> None:
    for kind, data in {
        FileKind.JSONL: b'{"text": "' + b"word " * 20 + b'"}\n',
        FileKind.CSV: b'text\n"' + b"word " * 20 + b'"\n',
        FileKind.TEXT: b"word " * 20 + b"\n\n",
        FileKind.MARKDOWN: b"# Heading\n\n" + b"A sentence. " * 300 + b"\n\n```\n" + b"code\n" * 30 + b"```\n\n",
    }.items():
        plan = planned(kind, data * 2000, part_bytes=20_000, sizes=2**20)
        lengths = [part.end - part.start.offset for part in plan.parts]
        assert len(lengths) > 5
        assert all(20_000 <= length < 30_000 for length in lengths[:-1]), (kind, lengths)


@pytest.mark.parametrize("kind", FileKind)
@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b" \n\r\n\t ", b"\xef\xbb\xbf \n"])
@pytest.mark.parametrize("sizes", [1, 1000])
def test_a_blank_file_is_refused(kind: FileKind, data: bytes, sizes: int) -> None:
    assert refusal(kind, data, sizes)[0] == "empty_file"


@pytest.mark.parametrize("kind", [FileKind.CSV, FileKind.TEXT, FileKind.MARKDOWN])
@pytest.mark.parametrize("sizes", [1, 2, 1000])
def test_a_text_that_is_not_utf8_is_refused_with_the_line(kind: FileKind, sizes: int) -> None:
    assert refusal(kind, b"text\r\nfine\rfine\nGr\xfc\xdfe\n", sizes)[:2] == ("not_utf8", 4)
    assert refusal(kind, b"text\nfine\nits last character is half \xc3", sizes)[:2] == ("not_utf8", 3)
    assert refusal(kind, b"text\nhalf of a pair \xed\xa0\x80\n", sizes)[:2] == ("not_utf8", 2)


@pytest.mark.parametrize("kind", FileKind)
@pytest.mark.parametrize("sizes", [1, 1000])
def test_utf16_and_binary_files_are_refused(kind: FileKind, sizes: int) -> None:
    text = 'text\n{"text": "x"}\n'
    for encoding in ("utf-16", "utf-32"):
        code, line, message = refusal(kind, text.encode(encoding), sizes)
        assert (code, line) == ("not_utf8", 1)
        assert "UTF-8" in message
    assert refusal(kind, text.encode("utf-16-le"), sizes)[:2] == ("not_text", 1)
    assert refusal(kind, b'text\r\n{"text": "x"}\r\nand\0this', sizes)[:2] == ("not_text", 3)


@pytest.mark.parametrize("kind", FileKind)
@pytest.mark.parametrize("sizes", [1, 2, 1000])
def test_a_byte_order_mark_is_skipped(kind: FileKind, sizes: int) -> None:
    data = b'text\n"{""text"": ""x""}"\n' if kind is FileKind.CSV else b'{"text": "x"}'
    marked = read(kind, b"\xef\xbb\xbf" + data, sizes=sizes)
    assert [entry.document and entry.document.text for entry in marked] == [
        entry.document and entry.document.text for entry in read(kind, data)
    ]
    assert (
        planned(kind, b"\xef\xbb\xbf" + data, sizes=sizes).parts[0].start.offset == planned(kind, data).parts[0].start.offset + 3
    )


def test_blocks_that_end_before_the_part_are_an_error() -> None:
    plan = planned(FileKind.TEXT, b"some words")
    with pytest.raises(ValueError, match="4 bytes"):
        read_part(plan, plan.parts[0], b"some w")


def test_bytes_after_the_part_are_not_read() -> None:
    plan = planned(FileKind.JSONL, b'{"text": "a"}\n{"text": "b"}\n', part_bytes=1)
    [one] = read_part(plan, plan.parts[0], b'{"text": "a"}\n!')
    assert one.document is not None


MEGABYTE = 2**20
HUGE = {
    "a line of JSON": (200, FileKind.JSONL, b'{"text": "', b"x" * MEGABYTE, b'"}\n{"text": "y"}\n'),
    "blank lines of JSONL": (32, FileKind.JSONL, b"", b" \n" * (MEGABYTE // 2), b'{"text": "y"}\n'),
    "a row of CSV": (32, FileKind.CSV, b"text\nx", b"x" * MEGABYTE, b"\ny\n"),
    "a quoted cell of CSV": (32, FileKind.CSV, b'text\n"x', b'x""\n,' * (MEGABYTE // 5), b'"\ny\n'),
    "blank rows of CSV": (32, FileKind.CSV, b"text\n", b"\r\n" * (MEGABYTE // 2), b"y\n"),
    "blanks": (32, FileKind.TEXT, b"x", b" \n" * (MEGABYTE // 2), b"y"),
}
"""The size in megabytes, the kind, the start of the file, a block that is repeated, and the end of the file."""


@pytest.mark.parametrize(("megabytes", "kind", "start", "block", "end"), HUGE.values(), ids=HUGE.keys())
def test_huge_records_and_blanks_are_read_in_little_memory(
    megabytes: int, kind: FileKind, start: bytes, block: bytes, end: bytes
) -> None:
    total = len(start) + megabytes * MEGABYTE // len(block) * len(block) + len(end)

    def whole() -> Iterable[bytes]:
        return chain([start], repeated(block, megabytes * MEGABYTE), [end])

    async def reading() -> tuple[Position, list[Entry]]:
        plan = await survey(kind, streamed(whole()), part_bytes=8 * MEGABYTE)
        first = plan.parts[0].start
        assert plan.parts[-1].end == total
        rest = chain([start[first.offset :]], repeated(block, megabytes * MEGABYTE), [end])
        return first, [one async for one in entries(kind, plan.columns, "f", streamed(rest), first, total)]

    tracemalloc.start()
    try:
        _, all_entries = asyncio.run(reading())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MEGABYTE
    assert all_entries[-1].document is not None
    assert all_entries[-1].document.text == "y"
    if kind is not FileKind.TEXT and block.strip():  # one record is too long
        assert [entry.error.code for entry in all_entries if entry.error] == ["line_too_long"]


def test_text_without_blanks_is_read_in_little_memory() -> None:
    """A smaller file than in the test above, because all of it is passages."""
    total = 4 * MEGABYTE

    async def reading() -> int:
        plan = await survey(FileKind.MARKDOWN, streamed(repeated(b"x" * MEGABYTE, total)), part_bytes=MEGABYTE)
        assert len(plan.parts) == 4
        stream = entries(FileKind.MARKDOWN, (), "f", streamed(repeated(b"x" * MEGABYTE, total)), Position(), total)
        return sum([len(one.document.text) async for one in stream if one.document])

    tracemalloc.start()
    try:
        assert asyncio.run(reading()) == total
        assert tracemalloc.get_traced_memory()[1] < 8 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_the_suffix_of_the_name_determines_the_kind() -> None:
    names = ["a.jsonl", "a.CSV", "b/c.d.Txt", "x.MD", "a.json", "a.markdown", "a", ".md", "csv", "a.csv.gz", "a."]
    assert [kind_of(name) for name in names] == [FileKind.JSONL, FileKind.CSV, FileKind.TEXT, FileKind.MARKDOWN, *[None] * 7]


def test_a_safe_name_is_not_changed_in_ids() -> None:
    assert document_id("handbook-v1.2_a:b.md", 17) == "handbook-v1.2_a:b.md#17"


@given(st.text(min_size=1, max_size=1024), st.integers(1, 10**12))
def test_every_name_gives_ids_and_metadata_that_can_be_stored(name: str, number: int) -> None:
    id_ = document_id(name, number)
    assert len(id_) <= 128
    assert re.search(DOCUMENT_ID, id_)
    assert len(metadata_json({"source": metadata_name(name), "start": number, "end": number})) <= MAX_METADATA_BYTES


def test_different_names_give_different_ids() -> None:
    names = ["a b.md", "a/b.md", "a-b.md", "ä.md", "ö.md", "-a.md", "a.md", "x" * 200, "x" * 201, "…", "." * 5]
    assert len({document_id(name, 1) for name in names}) == len(names)
    assert document_id("docs/Über uns.md", 3) == "docs-Uber-uns.md-47521be1#3"


def test_a_small_file_is_one_part() -> None:
    plan = planned(FileKind.JSONL, b'{"text": "a"}\n')
    assert plan.parts == (PartRange(Position(), 14),)
