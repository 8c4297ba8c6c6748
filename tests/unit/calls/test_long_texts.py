"""Test that the time to process a text is linear in its length, for every content."""

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from bench.texts import ALPHABET, OPERATIONS, measure_seconds, repeat_to_length
from spass.calls.datamark import remove_marks
from spass.core.tasks import MIN_THREAD_CHARACTERS, run_in_worker_thread
from tests.sampling import sampled

pytestmark = pytest.mark.anyio

SHORT_LENGTH, FACTOR = 2_000, 16


def units(case: str) -> Iterator[str]:
    """Yield the texts that are repeated: characters, pairs and random triples of the alphabet."""
    generator = random.Random(19)
    yield from sampled(ALPHABET, 3, case)
    yield from sampled(["".join(pair) for pair in itertools.product(ALPHABET, repeat=2)], 199, case)
    yield from sampled(["".join(generator.choices(ALPHABET, k=3)) for _ in range(20_000)], 1000, case)


def growth(work: Callable[[str], None], unit: str, short: int = SHORT_LENGTH) -> float:
    """Return the ratio of the durations of a text and of a text ``FACTOR`` as long."""
    return measure_seconds(work, repeat_to_length(unit, short * FACTOR)) / max(
        measure_seconds(work, repeat_to_length(unit, short)), 1e-5
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_time_for_a_text_is_linear_in_its_length(name: str) -> None:
    work, short = OPERATIONS[name], SHORT_LENGTH // 4 if "pieces" in name else SHORT_LENGTH
    for unit in units(name):
        work(unit)
        # Quadratic work takes 256 times as long. Repeat a measurement, because another process may have disturbed it.
        assert any(growth(work, unit, short) < 4 * FACTOR for _ in range(5)), ascii(unit)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "pieces" not in name])
@pytest.mark.parametrize("beginning", ["<", "{", "\x0b", "-----BEGIN PRIVATE KEY-----", "<d", "aws "])
def test_the_time_for_a_run_after_other_text_is_linear(name: str, beginning: str) -> None:
    for unit in sampled(ALPHABET, 5, name + beginning):
        assert any(growth(lambda text: OPERATIONS[name](beginning + text), unit) < 4 * FACTOR for _ in range(5)), ascii(unit)


@pytest.mark.parametrize("unit", ['<data mark="ˆ">', '<data mark="ˆ">a</data>', "</data>", "ˆ"])
def test_marks_are_removed_in_linear_time(unit: str) -> None:
    assert any(growth(lambda text: [remove_marks(text)].clear(), unit) < 4 * FACTOR for _ in range(5))


def count_calls(work: Callable[[str], None], text: str) -> int:
    """Return the number of function calls of ``work``."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work(text)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("unit", ["\r\u200d", "a\u200b", "中\ufe00", "ᠠ\u180b\u180b", "\x85a", "<s>", "[INST]", "<|a|>"])
def test_removing_many_characters_does_not_call_a_function_for_each(unit: str) -> None:
    text = repeat_to_length(unit, 60_000)
    for name in ("a user's message", "a tool's answer"):
        OPERATIONS[name](text)  # compiles the patterns
        assert count_calls(OPERATIONS[name], text) < 500


async def test_a_long_text_does_not_block_the_event_loop() -> None:
    loop_thread = threading.get_ident()
    assert await run_in_worker_thread(MIN_THREAD_CHARACTERS, lambda _: threading.get_ident(), None) == loop_thread
    assert await run_in_worker_thread(MIN_THREAD_CHARACTERS + 1, lambda _: threading.get_ident(), None) != loop_thread
