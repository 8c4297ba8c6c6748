"""Tests of the division of the tests into parts, and of the choice in long files."""

import math
from pathlib import Path

import pytest

from tests.__main__ import SHOWN, TOGETHER, divide, failures, files_with_tests
from tests.durations import recorded_durations
from tests.long_files import LONGEST, choose


def test_every_file_is_in_one_part() -> None:
    files = files_with_tests()
    parts = divide(files, recorded_durations(), 4)
    assert sorted(file for part in parts for file in part) == files


def test_the_files_that_share_a_gateway_are_in_few_parts() -> None:
    parts = divide(files_with_tests(), recorded_durations(), 8)
    for folder, number in TOGETHER.items():
        assert sum(any(file.startswith(folder) for file in part) for part in parts) <= number


def test_parts_take_about_the_same_time() -> None:
    durations = {f"test_{number}.py": number / 40 for number in range(1, 101)}
    parts = divide([*durations], durations, 4)
    totals = [sum(durations[file] for file in part) for part in parts]
    assert max(totals) < 1.02 * min(totals)


def test_there_are_no_more_parts_than_files() -> None:
    assert sorted(divide(["test_a.py", "test_b.py"], {}, 4)) == [["test_a.py"], ["test_b.py"]]


def test_the_longest_part_starts_first() -> None:
    durations = {"test_a.py": 1.0, "test_b.py": 5.0, "test_c.py": 2.0}
    assert divide([*durations], durations, 3) == [["test_b.py"], ["test_c.py"], ["test_a.py"]]


@pytest.mark.parametrize("tests", [1, 2, 3, 20, 21])
@pytest.mark.parametrize("times", [0, 0.9, 1, 2, 2.5, 7])
def test_a_long_file_runs_all_its_tests_in_as_many_commits_as_it_is_too_long(tests: int, times: float) -> None:
    names = list(range(tests))
    every = min(max(1, math.ceil(times)), tests)
    runs = [choose(names, times * LONGEST, commits, "tests/test_long.py") for commits in range(every)]
    assert sorted(name for run in runs for name in run) == names
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_a_test_that_is_chosen_by_itself_tries_all_its_points_after_some_rounds() -> None:
    for every in (2, 3, 4):
        runs = [
            (choose(range(every), every * LONGEST, commits, "test_faults.py")[0], commits % 3)
            for commits in range(3 * every * every)
        ]
        assert len(set(runs)) == 3 * every


def test_the_end_of_a_run_names_each_failed_test_and_the_end_of_its_reason(tmp_path: Path) -> None:
    report = tmp_path / "1.xml"
    reason = "\n".join(f"line {number}" for number in range(100))
    report.write_text(
        f"""<testsuites><testsuite><testcase file="tests/unit/test_a.py" name="test_right"/>
        <testcase file="tests/unit/test_a.py" name="test_wrong[1]"><failure message="wrong">{reason}</failure></testcase>
        <testcase file="tests/unit/test_b.py" name="test_b"><error message="failed on setup">no gateway</error></testcase>
        </testsuite></testsuites>"""
    )
    (wrong, broken, missing) = failures([report, tmp_path / "2.xml"])
    assert wrong.splitlines()[0] == "FAILED tests/unit/test_a.py::test_wrong[1]"
    assert wrong.splitlines()[1:] == reason.splitlines()[-SHOWN:]
    assert broken == "FAILED tests/unit/test_b.py::test_b\nno gateway"
    assert "without a report" in missing
