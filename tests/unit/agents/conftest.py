"""The fixture that most tests of this folder begin with."""

import pytest

from tests.unit.agents.engine_harness import EngineHarness, make_engine_harness


@pytest.fixture
def harness() -> EngineHarness:
    return make_engine_harness()
