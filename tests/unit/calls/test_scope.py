"""Scopes: the deadlines of streams, and of the calls of a turn that is cut at its deadline."""

from spass.calls.scope import CUT_SECONDS, REQUEST_SECONDS, STREAM_SECONDS
from tests.unit.tools.fakes import scope_for

FUNCTION_SECONDS = 900


def test_the_calls_of_a_cut_turn_outlive_the_cut_but_not_the_function() -> None:
    cut = scope_for(seconds=REQUEST_SECONDS).streaming
    calls = cut.with_time_for_cut
    assert STREAM_SECONDS - 5 < cut.deadline.remaining() <= STREAM_SECONDS
    assert calls.deadline.at - cut.deadline.at == CUT_SECONDS
    assert calls.deadline.remaining() < FUNCTION_SECONDS - 30
    assert calls.tally is cut.tally
