"""Code gains nothing: each attack runs as a cell of a real child that is confined as by the launcher ``process``."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.child_harness import CHILD
from tests.sampling import SOAK, sampled
from tests.unit.sandbox.attacks.attack import Attack
from tests.unit.sandbox.attacks.runs import mutant_program, run_confined, run_in_one_child, run_unconfined
from tests.unit.sandbox.attacks.table import ATTACKS
from tests.unit.sandbox.attacks.world import World

THAT_COULD_SUCCEED = [attack for attack in ATTACKS if attack.succeeds_here()]


@pytest.mark.parametrize("attack", sampled(THAT_COULD_SUCCEED, 4), ids=lambda attack: attack.name)
def test_the_same_code_gains_something_where_nothing_confines_it(tmp_path: Path, attack: Attack) -> None:
    with World(tmp_path) as world:
        output = run_unconfined(attack, world)
        assert world.gains(output) != [], output


OLDEST_KERNEL = mutant_program({"landlock": 1, "verify": True})
"""A child that knows the first version of Landlock alone. It judges neither O_TRUNC nor networks, devices and signals."""
PROGRAMS = {"this kernel": [str(CHILD)], "the oldest kernel": OLDEST_KERNEL}
LASTING = [attack for attack in ATTACKS if not attack.ends]
TOGETHER = 1 if SOAK else 16
"""The attacks of one child. In the soak, each has a child of its own."""


@pytest.mark.parametrize("kernel", PROGRAMS)
@pytest.mark.parametrize(
    "attacks", [LASTING[at : at + TOGETHER] for at in range(0, len(LASTING), TOGETHER)], ids=lambda attacks: attacks[0].name
)
def test_the_attacks_gain_nothing(tmp_path: Path, attacks: Sequence[Attack], kernel: str) -> None:
    with World(tmp_path) as world:
        for attack, output in zip(attacks, run_in_one_child(attacks, world, PROGRAMS[kernel]), strict=True):
            assert (attack.name, world.gains(output)) == (attack.name, []), output
            assert '"output"' in output


@pytest.mark.parametrize("kernel", PROGRAMS)
@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.ends], ids=lambda attack: attack.name)
def test_an_attack_that_ends_its_process_gains_nothing(tmp_path: Path, attack: Attack, kernel: str) -> None:
    with World(tmp_path) as world:
        output = run_confined(attack, world, PROGRAMS[kernel])
        assert world.gains(output) == [], output
        assert '"output"' not in output
