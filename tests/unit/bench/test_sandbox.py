"""The bench of the sandbox counts the invocations of a turn, and replays what it says."""

import pytest

from bench.sandbox import TURN_CALLS, replay_seconds, turn_invocations

pytestmark = pytest.mark.anyio


async def test_each_call_of_a_turn_is_one_invocation_more() -> None:
    client = await turn_invocations()
    assert len(client.invocations) == TURN_CALLS + 1
    assert all(seconds > 0 for seconds in (*client.invocations, *client.cpu))


async def test_a_start_that_replays_a_program_takes_processor_time() -> None:
    assert await replay_seconds(2, 1) > 0
