"""The fixture that most tests of this folder begin with."""

import pytest

from tests.unit.agents.stage import Stage, set_stage


@pytest.fixture
def stage() -> Stage:
    return set_stage()
