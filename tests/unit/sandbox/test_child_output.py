"""The output of a cell is kept up to a limit, in whichever way the cell prints."""

import pytest

from tests.child_harness import CellOf, Report, Turn, run_cell


@pytest.mark.parametrize(
    "code",
    [
        "print('é')",
        "import sys; sys.stdout.write('é\\n'); sys.stdout.flush()",
        "import sys; sys.stderr.write('é\\n') and None",
        "import sys; sys.__stdout__.write('é\\n') and None",
        "import sys; sys.__stderr__.writelines(['é', '\\n'])",
        "import sys; sys.stdout.buffer.write(b'\\xc3'); sys.stdout.buffer.write(b'\\xa9\\n') and None",
        "import os; os.write(1, b'\\xc3\\xa9'); os.write(2, b'\\n') and None",
        "import sys; print('é', file=sys.stderr)",
        "import sys; sys.stdout.close(); sys.stderr.close(); print('é')",
        "import logging; logging.basicConfig(format='%(message)s'); logging.warning('é')",
    ],
)
def test_every_way_to_print_is_output(code: str) -> None:
    assert run_cell(code) == Report("é\n")


def test_a_stream_that_a_cell_replaces_is_back_in_the_next_one() -> None:
    turn = Turn([CellOf("import sys, io; sys.stdout = io.StringIO(); print('lost')"), CellOf("print('next')")])
    assert turn.run_live() == [Report(""), Report("next\n")]


@pytest.mark.parametrize(
    ("code", "first", "characters"),
    [
        ("for _ in range(1000): print('x' * 10**7, end='')", "x" * 100, 10**10),
        ("for _ in range(10**5): print('yy')", "yy\n" * 34, 3 * 10**5),
        ("import os\nfor _ in range(10**4): os.write(1, b'\\xc3\\xa9' * 10**3)", "é" * 100, 10**7),
        ("import os\nfor _ in range(10**4): os.write(1, b'\\xff' * 10**3)", "\ufffd" * 100, 10**7),
        ("'z' * 10**6", "'" + "z" * 99, 10**6 + 3),
    ],
)
def test_output_over_the_limit_is_cut_and_counted(code: str, first: str, characters: int) -> None:
    (report,) = Turn([CellOf(code, max_output_chars=100)]).run_live()
    assert report == Report(first[:100], truncated=characters - 100)


def test_writing_to_the_descriptors_themselves_is_neither_output_nor_protocol() -> None:
    code = "import io\nfor descriptor in (1, 2): io.FileIO(descriptor, 'w', closefd=False).write(b'x' * 10**6)"
    assert run_cell(code) == Report("")


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("6 * 7", "42\n"),
        ("x = 1\nx + 1", "2\n"),
        ("None", ""),
        ("x = 5", ""),
        ("for i in range(2): i", ""),
        ("", ""),
        ("# nothing", ""),
        ("print(1); 2", "1\n2\n"),
    ],
)
def test_the_value_of_a_last_expression_is_printed(code: str, output: str) -> None:
    assert run_cell(code) == Report(output)


def test_half_of_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert run_cell("print('\\ud800!')") == Report("?!\n")


SUBCLASS = """
import sys
class Odd(str):
    def __len__(self): return -9
    def __getitem__(self, index): return 'z' * 99
sys.stdout.write(Odd('abcdef')) and None
"""


def test_a_subclass_of_str_cannot_print_more_than_the_limit() -> None:
    (report,) = Turn([CellOf(SUBCLASS, max_output_chars=4)]).run_live()
    assert report == Report("abcd", truncated=2)
