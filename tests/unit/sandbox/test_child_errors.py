"""The error of a cell is short, names its own lines, and never contains a path of ours."""

import pytest

from tests.child_harness import CellOf, Report, Turn, run_cell

HEAD = "Traceback (most recent call last):\n"


def error_of(code: str) -> str:
    report = run_cell(code)
    assert report.error is not None
    assert report == Report(report.output, report.error)
    return report.error


def test_a_traceback_has_the_lines_of_the_cell_alone() -> None:
    assert error_of("import json\ndef f(text):\n    return json.loads(text)\nf('{')") == (
        f"{HEAD}"
        "  File \"<cell 1>\", line 4, in <module>\n    f('{')\n"
        '  File "<cell 1>", line 3, in f\n    return json.loads(text)\n'
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )


def test_a_function_of_an_earlier_cell_is_shown_with_its_cell() -> None:
    _, report = Turn([CellOf("def f():\n    return 1 / 0"), CellOf("f()")]).run_live()
    assert report.error == (
        f"{HEAD}"
        '  File "<cell 2>", line 1, in <module>\n    f()\n'
        '  File "<cell 1>", line 2, in f\n    return 1 / 0\n'
        "ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("if True:\n    x = (1,\n", "'(' was never closed"),
        ("def f(:\n    pass", '  File "<cell 1>", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax'),
        ("x = 1\nreturn x", "  File \"<cell 1>\", line 2\n    return x\n    ^\nSyntaxError: 'return' outside function"),
        ("a\0b", "null bytes"),
        ("x = '\ud800'", "surrogates not allowed"),
        ("(" * 10**7, "too many nested parentheses"),
        ("-" * 10**5 + "1", "the code is nested too deeply"),
        ("1" + "+1" * 10**5, "RecursionError"),
    ],
)
def test_code_that_does_not_compile_is_an_error(code: str, error: str) -> None:
    assert error in error_of(code)
    assert len(error_of(code)) < 1000


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise SystemExit", None),
        ("import sys; sys.exit(0)", None),
        ("import sys; sys.exit('no')", "SystemExit: no"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class E(BaseException): pass\nraise E", "E"),
        ("input('name? ')", "EOFError: EOF when reading a line"),
    ],
)
def test_leaving_a_cell_ends_the_cell_alone(code: str, error: str | None) -> None:
    first, second = Turn([CellOf(code), CellOf("print('next')")]).run_live()
    assert (first.error and first.error.splitlines()[-1]) == error
    assert second == Report("next\n")


def test_the_middle_of_a_deep_recursion_is_left_out() -> None:
    error = error_of("def f(n):\n    return f(n + 1)\nf(0)")
    assert "more calls …" in error
    assert error.endswith("RecursionError: maximum recursion depth exceeded")
    assert error.count('File "<cell 1>"') == 8


def test_a_long_message_and_a_long_line_are_cut() -> None:
    error = error_of(f"raise ValueError('{'long' * 2000}')")
    assert "more characters" in error
    assert len(error) < 3000


@pytest.mark.parametrize(
    "body",
    [
        "def __str__(self): raise KeyError",
        "def __str__(self): return 5",
        "def __str__(self): raise SystemExit",
        "__str__ = None",
    ],
)
def test_an_exception_without_a_message_has_its_type(body: str) -> None:
    assert error_of(f"class Odd(Exception):\n    {body}\nraise Odd").endswith("Odd: <its message cannot be read>")


def test_memory_that_a_cell_exceeds_is_reported() -> None:
    for code in ("bytearray(10**10)", "x = []\nwhile True: x.append(bytearray(10**6))", "x = []\nwhile True: x.append({})"):
        (report,) = Turn([CellOf(code)]).run_live()
        assert report.exceeded == "memory"
        assert report.error is not None
        assert "MemoryError" in report.error
