"""Fixtures of the tests of operators' memories."""

import pytest

from tests.unit.memory.operators import Operators


@pytest.fixture
def operators() -> Operators:
    return Operators()
