"""The names of an execution's further tries."""

import pytest

from local.executions import next_name


@pytest.mark.parametrize(
    ("name", "following"),
    [("upl_01m7wfq65f", "upl_01m7wfq65f-2"), ("upl_01m7wfq65f-2", "upl_01m7wfq65f-3"), ("upl_9-9", "upl_9-10")],
)
def test_each_try_has_the_next_number(name: str, following: str) -> None:
    assert next_name(name) == following
