"""The names of an execution's further tries."""

import pytest

from local.executions import next_name


@pytest.mark.parametrize(
    ("name", "following"),
    [("job_01m7wfq65f", "job_01m7wfq65f-2"), ("job_01m7wfq65f-2", "job_01m7wfq65f-3"), ("job_9-9", "job_9-10")],
)
def test_each_try_has_the_next_number(name: str, following: str) -> None:
    assert next_name(name) == following
