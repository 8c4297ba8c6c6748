"""Code gains nothing: each attack runs as a cell of a real child that is confined as by the launcher ``process``."""

from pathlib import Path

import pytest

from tests.unit.sandbox.attacks.attack import Attack
from tests.unit.sandbox.attacks.runs import run_confined, run_unconfined
from tests.unit.sandbox.attacks.table import ATTACKS
from tests.unit.sandbox.attacks.world import World

THAT_COULD_SUCCEED = [attack for attack in ATTACKS if attack.succeeds_here()]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_gains_nothing(tmp_path: Path, attack: Attack) -> None:
    with World(tmp_path) as world:
        output = run_confined(attack, world)
        assert world.gains(output) == [], output
        assert ('"output"' not in output) == attack.ends, output


@pytest.mark.parametrize("attack", THAT_COULD_SUCCEED, ids=lambda attack: attack.name)
def test_the_same_code_gains_something_where_nothing_confines_it(tmp_path: Path, attack: Attack) -> None:
    with World(tmp_path) as world:
        output = run_unconfined(attack, world)
        assert world.gains(output) != [], output
