"""A session is compacted before a turn if its strategy is auto, it has more messages than it keeps, and they fill the window."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.ids import AgentName, SessionId, UserId
from spass.core.messages import Message, Role, ToolCall
from spass.core.time import Timestamp
from spass.sessions.session import Session
from spass.tenancy.scalars import CompactStrategy

AT = Timestamp("2026-01-01T00:00:00.000Z")


def session(strategy: CompactStrategy = "auto", keep: int = 0) -> Session:
    return Session(SessionId("ses_1"), AgentName("a"), UserId("u"), None, AT, AT, strategy, keep, True)


def messages(sizes: list[int]) -> list[Message]:
    return [Message(Role.USER, "x" * size) for size in sizes]


@given(
    st.sampled_from(["auto", "manual", "off"]),
    st.integers(0, 6),
    st.lists(st.integers(0, 90), max_size=6),
    st.integers(0, 90),
    st.integers(1, 100),
)
def test_a_session_is_compacted_only_if_all_three_conditions_hold(
    strategy: CompactStrategy, keep: int, sizes: list[int], new: int, window: int
) -> None:
    full = Fraction(sum(sizes) + new, 4) > Fraction(80, 100) * window
    wanted = strategy == "auto" and len(sizes) > keep and full
    assert session(strategy, keep).should_compact(messages(sizes), new, window) is wanted


@pytest.mark.parametrize(("window", "most"), [(1, 3), (10, 32), (1000, 3200), (200_000, 640_000)])
def test_the_limit_of_80_percent_is_exact(window: int, most: int) -> None:
    assert not session().should_compact(messages([most - 1]), 1, window)
    assert session().should_compact(messages([most - 1]), 2, window)


def test_names_and_arguments_of_tool_calls_count_and_their_ids_do_not() -> None:
    call = Message(Role.ASSISTANT, "ab", (ToolCall("call_of_any_length", "cd", '{"e":1}'),), None)
    result = Message(Role.TOOL, "f", (), "call_of_any_length")
    assert not session().should_compact([call, result], 20, 10)
    assert session().should_compact([call, result], 21, 10)
