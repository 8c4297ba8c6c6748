"""Splitting TXT and Markdown: passages follow the structure of the text and omit none of it."""

import sys

import pytest
from hypothesis import given

from spass.rag.index.documents import MAX_TEXT_BYTES, NewDocument
from spass.rag.ingest.plan import FileKind
from spass.rag.ingest.text import MAX_CODE_BYTES, PASSAGE_BYTES, TextSplitter
from tests.unit.rag.ingest.sample_files import documents, planned, read
from tests.unit.rag.ingest.test_reading import texts

SENTENCE = "This is a sentence of some words. "
PARAGRAPH = SENTENCE * 11


def passages(text: str, kind: FileKind = FileKind.MARKDOWN) -> list[str]:
    return [document.text for document in documents(read(kind, text.encode()))]


def span(document: NewDocument) -> tuple[int, int]:
    start, end = document.metadata["start"], document.metadata["end"]
    assert isinstance(start, int)
    assert isinstance(end, int)
    return start, end


@pytest.mark.parametrize("kind", [FileKind.TEXT, FileKind.MARKDOWN])
@given(texts())
def test_passages_have_all_text_except_blanks_between_them(kind: FileKind, data: bytes) -> None:
    pieces = documents(read(kind, data))
    end = len("\ufeff".encode()) if data.startswith("\ufeff".encode()) else 0
    for document in pieces:
        start, stop = span(document)
        assert data[start:stop].decode() == document.text == document.text.strip()
        assert not data[end:start].decode().strip()
        assert len(document.text.encode()) <= MAX_TEXT_BYTES
        end = stop
    assert not data[end:].decode().strip()


@pytest.mark.parametrize("kind", [FileKind.TEXT, FileKind.MARKDOWN])
@given(texts())
def test_only_code_passages_are_longer_than_the_model_reads(kind: FileKind, data: bytes) -> None:
    for text in (document.text for document in documents(read(kind, data))):
        assert len(text.encode()) <= (MAX_CODE_BYTES if "```" in text or "~~~" in text else PASSAGE_BYTES)


def test_a_passage_has_its_byte_range() -> None:
    first, second = documents(read(FileKind.MARKDOWN, "\n# Über\n\nText.\n\n# Zwei\n".encode(), name="docs/a b.md"))
    assert (first.text, first.metadata) == ("# Über\n\nText.", {"source": "docs/a b.md", "start": 1, "end": 15})
    assert (second.text, second.metadata) == ("# Zwei", {"source": "docs/a b.md", "start": 17, "end": 23})
    assert [one.id.partition("#")[2] for one in (first, second)] == ["1", "2"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_heading_begins_a_passage_and_stays_with_its_text(newline: str) -> None:
    text = newline.join(
        ["Intro.", "# One", "a", "", "## Two", "", "b", "", "Three", "=====", "c", "", "Four", "---", "", "d #not", "#nor"]
    )
    pieces = [passage.replace(newline, "\n") for passage in passages(text)]
    assert pieces == ["Intro.", "# One\na", "## Two\n\nb", "Three\n=====\nc", "Four\n---\n\nd #not\n#nor"]


def test_headings_without_text_stay_with_the_next() -> None:
    assert passages("# Book\n\n## Chapter\n\n### Section\n\nText.\n\n## Next\n\nText.") == [
        "# Book\n\n## Chapter\n\n### Section\n\nText.", "## Next\n\nText.",
    ]  # fmt: skip


def test_a_heading_stays_with_the_start_of_a_long_paragraph() -> None:
    first, *rest = passages(f"# Heading\n\n{SENTENCE * 60}")
    assert first.startswith("# Heading\n\nThis is")
    assert first.endswith("words.")
    assert all(passage.startswith("This is") for passage in rest)


def test_plain_text_has_no_headings() -> None:
    assert passages("One.\n\n# Two\n\nThree.", FileKind.TEXT) == ["One.\n\n# Two\n\nThree."]


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\r\r", "\n \t\n\n"])
def test_small_paragraphs_are_packed_up_to_the_target(blank: str) -> None:
    pieces = passages(blank.join([PARAGRAPH.strip()] * 7), FileKind.TEXT)
    assert [passage.split(blank) for passage in pieces] == [[PARAGRAPH.strip()] * count for count in (2, 2, 2, 1)]


def test_a_long_paragraph_is_cut_between_sentences() -> None:
    for sentence in (
        "Dr. Li met Mr. X, e.g. on 5. May, i. e. Then? ",
        "So ist es z. B. in Köln! ",
        "“Really?” he said… “Yes.” ",
    ):
        pieces = passages(sentence * 200)
        assert len(pieces) > 3
        assert {passage[:4] for passage in pieces} == {sentence[:4]}


def test_chinese_and_japanese_are_cut_between_sentences() -> None:
    pieces = passages("これは文です。" * 300)
    assert len(pieces) > 3
    assert all(passage.endswith("。") for passage in pieces)


def test_text_without_sentences_is_cut_at_lines_words_or_characters() -> None:
    assert all(passage.startswith("a line") for passage in passages("a line without an end\n" * 200))
    assert all(passage.startswith("word") and passage.endswith("word") for passage in passages("word " * 1000))
    hard = passages("ä漢🎉" * 1000)
    assert "".join(hard) == "ä漢🎉" * 1000
    assert all(PASSAGE_BYTES - 4 < len(passage.encode()) <= PASSAGE_BYTES for passage in hard[:-1])


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_a_block_of_code_that_fits_is_kept_whole(fence: str) -> None:
    code = f"{fence}python\n" + "# no heading\n\nx = 1\n" * 150 + fence
    assert PASSAGE_BYTES < len(code) < MAX_CODE_BYTES
    assert passages(f"{PARAGRAPH}\n\n{code}\n\nAfter.\n\n# Next\n") == [PARAGRAPH.strip(), code, "After.", "# Next"]
    assert passages(f"For example:\n{code}\nAfter.")[0] == f"For example:\n{code}"


def test_a_longer_block_of_code_is_cut_at_blank_lines_and_stays_code() -> None:
    code = "```\n" + "# no heading\nx = 1\n\n" * 500 + "```"
    *inside, last = passages(f"{code}\n# Heading\nText.")
    assert last == "# Heading\nText."
    assert all(passage.endswith("x = 1") for passage in inside[:-1])
    assert all(len(passage) <= PASSAGE_BYTES for passage in inside)


def test_a_fence_ends_only_with_its_own_marks() -> None:
    code = "````md\n```\n# no heading\n```\n~~~\n# none\n```` no end\n# none\n````"
    assert passages(f"Text.\n\n{code}\n\n# Heading") == [f"Text.\n\n{code}", "# Heading"]


def test_code_that_is_never_closed_ends_with_the_file() -> None:
    assert passages("Text.\n\n```\n# no heading\ncode") == ["Text.\n\n```\n# no heading\ncode"]


def test_blanks_of_every_language_are_blanks() -> None:
    blanks = "".join(char for char in map(chr, range(sys.maxunicode)) if char.isspace())
    assert [passage.data for passage in TextSplitter(FileKind.TEXT, planned(FileKind.TEXT, b"x").parts[0].start).feed(
        f"{blanks}a{blanks}".encode(), final=True
    )] == [b"a"]  # fmt: skip


def test_a_passage_that_is_only_blanks_does_not_exist() -> None:
    assert passages("# One\n\n\u00a0\n\u3000\n\n# Two\n\n\u2028\n") == ["# One", "# Two"]
