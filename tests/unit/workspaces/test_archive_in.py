"""An archive is read as a whole or refused, with the entry named, in bounded time and memory."""

import io
import stat
import time
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.errors import InvalidArchive, InvalidInput, InvalidPath
from spass.workspaces.archive_in import read_archive
from spass.workspaces.paths import MAX_FILES
from tests.hostile_archives import HONEST, HOSTILE, MIB, Member, cut_archives, pack, pack_zip64, wide
from tests.hostile_paths import HOSTILE_PATHS, UNUSUAL


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_with_its_entry_named(kind: str) -> None:
    code, words, build = HOSTILE[kind]
    body = build()
    tracemalloc.start()
    started = time.thread_time()
    try:
        with pytest.raises(InvalidInput) as caught:
            read_archive(body)
        seconds = time.thread_time() - started
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code == code
    assert words in caught.value.message
    assert caught.value.message.isprintable()
    assert seconds < 30  # of processor time; tracing the memory takes most of it
    assert peak < 130 * MIB


@given(st.dictionaries(st.text("abc", min_size=1, max_size=5), st.binary(max_size=200), max_size=8), st.sampled_from([0, 8]))
def test_an_archive_of_the_standard_library_is_read(contents: dict[str, bytes], method: int) -> None:
    files = {f"{name}/{number}.bin": content for number, (name, content) in enumerate(contents.items())}
    assert read_archive(zipped(files, method)) == files


def test_every_file_of_a_program_that_streams_its_archive_is_read() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise io.UnsupportedOperation

        def tell(self) -> int:
            raise io.UnsupportedOperation

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("a.md", "w", force_zip64=True) as file:
            file.write(b"# A\n")
        archive.writestr("b/c.md", b"# C\n")
    assert read_archive(pipe.getvalue()) == {"a.md": b"# A\n", "b/c.md": b"# C\n"}


def test_folders_and_comments_are_ignored() -> None:
    folders = [Member(name, b"", mode=stat.S_IFDIR | 0o755, dos_attributes=0x10) for name in ("src/", "empty/", "a/b/", "src/")]
    body = pack(*folders, HONEST, comment=b"made by git archive")
    assert read_archive(body) == {"src/main.py": HONEST.content}


def test_an_empty_archive_has_no_files() -> None:
    assert read_archive(pack()) == {}
    assert read_archive(zipped({})) == {}


def test_forms_of_zip64_are_read() -> None:
    content = HONEST.content
    expected = {"src/main.py": content}
    sizes = wide(len(content), len(HONEST.data))
    large = replace(HONEST, size=2**32 - 1, packed_size=2**32 - 1, extra=sizes, local_extra=sizes)
    assert read_archive(pack(large)) == expected
    assert read_archive(pack_zip64(HONEST)) == expected
    assert read_archive(pack(replace(HONEST, offset=2**32 - 1, extra=wide(0)))) == expected


@pytest.mark.parametrize("flags", [0, 0x800])
def test_names_are_utf_8_with_and_without_the_flag(flags: int) -> None:
    assert read_archive(pack(Member("Größe/日本.md", b"x", flags=flags))) == {"Größe/日本.md": b"x"}


def test_other_names_without_the_flag_are_of_code_page_437() -> None:
    assert read_archive(pack(Member("é.md".encode("cp437"), b"x", flags=0))) == {"é.md": b"x"}


def test_an_archive_in_an_archive_is_a_file() -> None:
    inner = pack(Member("bomb", bytes(3 * MIB)))
    for _ in range(5):
        inner = pack(Member("nested.zip", inner, method=0), Member("again.zip", inner))
    assert read_archive(inner).keys() == {"nested.zip", "again.zip"}


def test_5000_files_of_100_mib_are_read() -> None:
    sizes = [4 * MIB] * 25 + [0] * (MAX_FILES - 25)
    body = pack(*(Member(f"folder{number % 70}/f{number}", bytes(size)) for number, size in enumerate(sizes)))
    started = time.thread_time()
    files = read_archive(body)
    assert time.thread_time() - started < 5
    assert (len(files), sum(map(len, files.values()))) == (MAX_FILES, 100 * MIB)


def test_an_archive_cut_anywhere_is_refused() -> None:
    for body in cut_archives():
        with pytest.raises(InvalidArchive):
            read_archive(body)


@given(st.data())
def test_a_damaged_archive_is_refused_or_has_the_same_files(data: st.DataObject) -> None:
    members = [HONEST, Member("docs/a.md", b"# A\n" * 9, method=0)]
    body = bytearray(pack(*members))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        files = read_archive(bytes(body))
    except InvalidInput:
        return
    assert sorted(files.values()) == sorted(member.content for member in members)


@given(st.binary(max_size=300))
def test_no_bytes_raise_another_error(body: bytes) -> None:
    for prefix, suffix in ((b"", b""), (b"PK\3\4", b"PK\5\6" + bytes(18)), (pack(HONEST)[:-22], b"")):
        try:
            read_archive(prefix + body + suffix)
        except InvalidInput:
            continue


def test_hostile_paths_are_refused() -> None:
    allowed = []
    for path in HOSTILE_PATHS:
        if path.endswith("/") or not path or len(path) > 60_000:
            continue  # an entry for a folder
        try:
            read_archive(pack(Member(path), Member("README.md")))
        except InvalidPath:
            continue
        except InvalidArchive:
            assert any("\ud800" <= character <= "\udfff" for character in path)
            continue
        allowed.append(path)
    assert allowed == []


def test_unusual_paths_are_read() -> None:
    for path in UNUSUAL:
        assert read_archive(pack(Member(path, b"x"))) == {path: b"x"}


def test_the_files_are_those_that_zipfile_extracts(tmp_path: Path) -> None:
    body = pack(HONEST, Member("a b/ü.md", b"# U\n", method=0), Member("docs/", b"", mode=stat.S_IFDIR))
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        archive.extractall(tmp_path)
    found = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert read_archive(body) == found
