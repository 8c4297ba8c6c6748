"""The bench of workspaces counts what a read, a listing and an edit ask of AWS, and its files do not depend on the run."""

import pytest

from bench.workspace import Figures, measure, price_of_a_gigabyte
from bench.workspace_files import make_archives, make_files
from spass.workspaces.archive_in import read_archive
from spass.workspaces.paths import MAX_BODY_BYTES

pytestmark = pytest.mark.anyio


def calls(figures: Figures) -> tuple[int, int, int, int]:
    return figures.table_calls, figures.transactions, figures.gets, figures.puts


async def test_reads_and_edits_need_as_few_calls_as_they_should() -> None:
    figures = await measure(make_files(60), 1)
    assert {name: calls(one) for name, one in figures.items() if one.meter} == {
        "an archive in": (1, 1, 0, 2),
        "read_file, cold": (1, 0, 2, 0),
        "list_directory of the root, cold": (1, 0, 1, 0),
        "list_directory, all depths, cold": (1, 0, 1, 0),
        "list_directory, few files visible, cold": (1, 0, 1, 0),
        "read_file, warm": (1, 0, 1, 0),
        "list_directory of the root, warm": (1, 0, 0, 0),
        "list_directory, all depths, warm": (1, 0, 0, 0),
        "list_directory, few files visible, warm": (1, 0, 0, 0),
        "the commit of an edit": (1, 1, 0, 2),
        "an archive out, warm": (1, 0, 2, 0),
    }
    assert [name for name, one in figures.items() if not one.meter] == [
        "git add and commit of all files",
        "git show of a file",
        "git ls-tree, recursive",
        "git commit of an edit",
        "git clone",
    ]
    edit = figures["the commit of an edit"].meter
    assert edit is not None
    assert f"holds {10**9 // edit.bucket_bytes} versions" in price_of_a_gigabyte(figures["the commit of an edit"])


def test_the_files_are_the_same_in_every_run_and_fit_into_requests() -> None:
    files = make_files(2600)
    assert files == make_files(2600)
    archives = make_archives(files)
    assert [len(read_archive(archive)) for archive in archives] == [2500, 100]
    assert max(map(len, archives)) <= MAX_BODY_BYTES
    assert {path: body for archive in archives for path, body in read_archive(archive).items()} == files
