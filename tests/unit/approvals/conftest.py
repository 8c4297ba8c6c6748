"""Approvals on stores in memory."""

import pytest

from tests.unit.approvals.waiting_calls import WaitingCalls


@pytest.fixture
def calls() -> WaitingCalls:
    return WaitingCalls()
