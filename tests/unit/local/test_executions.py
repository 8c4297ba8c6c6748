"""The names of an execution's further attempts."""

import pytest

from local.executions import next_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [("job_01m7wfq65f", "job_01m7wfq65f-2"), ("job_01m7wfq65f-2", "job_01m7wfq65f-3"), ("job_9-9", "job_9-10")],
)
def test_each_attempt_has_the_next_number(name: str, expected: str) -> None:
    assert next_name(name) == expected
