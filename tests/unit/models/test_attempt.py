"""The usage of an attempt: the provider's counts, and an estimate of the rest."""

import pytest

from spass.core.messages import TokenUsage
from spass.models.attempt import Attempt

EXPECTED = TokenUsage(100, 1000)


def usage_of(*pieces: tuple[int, TokenUsage | None]) -> tuple[TokenUsage, bool]:
    attempt = Attempt(EXPECTED)
    attempt.sent = True
    for characters, counted in pieces:
        attempt.record_chunk(characters, counted)
    return attempt.usage, attempt.estimated


def test_an_attempt_that_was_not_sent_has_no_usage() -> None:
    attempt = Attempt(EXPECTED)
    assert (attempt.usage, attempt.estimated) == (TokenUsage(), False)


def test_an_attempt_whose_answer_is_lost_has_the_expected_usage() -> None:
    assert usage_of() == (EXPECTED, True)


@pytest.mark.parametrize(
    ("pieces", "usage", "estimated"),
    [
        ([(40, TokenUsage(7, 9))], TokenUsage(7, 9), False),
        ([(40, None), (0, TokenUsage(7, 9))], TokenUsage(7, 9), False),
        ([(40, None), (1, None)], TokenUsage(100, 11), True),
        ([(40, TokenUsage(7, 0))], TokenUsage(7, 10), True),
        ([(40, TokenUsage(0, 9))], TokenUsage(100, 9), True),
        ([(40, TokenUsage(0, 0))], TokenUsage(100, 10), True),
        ([(0, TokenUsage(7, 0))], TokenUsage(7, 0), False),
    ],
)
def test_text_that_the_provider_did_not_count_is_estimated(
    pieces: list[tuple[int, TokenUsage | None]], usage: TokenUsage, estimated: bool
) -> None:
    assert usage_of(*pieces) == (usage, estimated)


@pytest.mark.parametrize(
    ("pieces", "usage", "estimated"),
    [
        ([(0, TokenUsage(7, 1)), (40, None)], TokenUsage(7, 11), True),
        ([(40, TokenUsage(7, 50)), (8, None)], TokenUsage(7, 52), True),
        ([(40, TokenUsage(7, 50)), (8, TokenUsage(7, 53))], TokenUsage(7, 53), False),
        ([(40, TokenUsage(7, 50)), (0, TokenUsage(0, 0))], TokenUsage(7, 50), False),
        ([(0, TokenUsage(7, 1)), (40, None), (0, TokenUsage(0, 0))], TokenUsage(7, 11), True),
        ([(0, TokenUsage(7, 0)), (40, None), (0, TokenUsage(0, 12))], TokenUsage(7, 12), False),
    ],
)
def test_text_after_the_last_count_is_added_to_it(
    pieces: list[tuple[int, TokenUsage | None]], usage: TokenUsage, estimated: bool
) -> None:
    assert usage_of(*pieces) == (usage, estimated)
