"""The fixture of most tests of agents."""

import pytest

from tests.unit.agents.engine_harness import EngineHarness, make_engine_harness


@pytest.fixture
def harness() -> EngineHarness:
    return make_engine_harness()
