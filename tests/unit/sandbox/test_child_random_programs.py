"""A turn that is interrupted at random and repeated over its journal has the transcript of an uninterrupted one, and performs
each call once: 500 random programs in a soak, on each interpreter that is found.

``SPASS_SEED=7 pytest …`` runs one program only.
"""

import os
import sys
from collections.abc import Sequence
from random import Random
from typing import Final

import pytest

from tests.child_harness import Turn
from tests.interpreters import INTERPRETERS
from tests.sampling import sampled
from tests.unit.sandbox.random_programs import CONTEXT, answers, random_program

PROGRAMS: Final = 500
PROGRAMS_PER_TEST: Final = 20
SEED: Final = os.environ.get("SPASS_SEED")


def seeds_of(version: str) -> Sequence[int]:
    if SEED is not None:
        return [int(SEED)]
    return sampled(range(PROGRAMS), 5 if version == RUNNING else 25)


RUNNING: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
CASES: Final = [
    pytest.param(interpreter, seeds[start : start + PROGRAMS_PER_TEST], id=f"{version}-{seeds[start]}")
    for version, interpreter in INTERPRETERS.items()
    for seeds in [seeds_of(version)]
    for start in range(0, len(seeds), PROGRAMS_PER_TEST)
]


@pytest.mark.parametrize(("interpreter", "seeds"), CASES)
def test_an_interrupted_turn_has_the_transcript_of_an_uninterrupted_one(interpreter: str, seeds: Sequence[int]) -> None:
    calls = 0
    for seed in seeds:
        rng = Random(seed)
        cells = random_program(rng)
        live = Turn(cells, answers(), {"context": CONTEXT}, interpreter=interpreter)
        expected = live.run_live()
        interrupted = Turn(cells, answers(), {"context": CONTEXT}, interpreter=interpreter)
        assert (seed, interrupted.run_interrupted(rng)) == (seed, expected)
        assert interrupted.requests == live.requests
        calls += len(live.requests)
    assert calls or SEED is not None
