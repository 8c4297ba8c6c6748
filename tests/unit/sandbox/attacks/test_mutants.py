"""Each item of the policy is needed: without it, an attack gains something."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from spass.core.messages import Json
from spass.sandbox.child import landlock
from tests.sampling import sampled
from tests.unit.sandbox.attacks.attack import Attack, has_capabilities
from tests.unit.sandbox.attacks.mutants import OF_LANDLOCK, OF_THE_FILTER, OF_THE_LIMITS, OF_THE_STEPS, Mutant
from tests.unit.sandbox.attacks.runs import mutant_program, run_confined
from tests.unit.sandbox.attacks.table import ATTACKS
from tests.unit.sandbox.attacks.world import World
from tests.unit.sandbox.test_ordinary_programs import PROGRAMS

BY_NAME = {attack.name: attack for attack in ATTACKS}
MUTANTS = [
    mutant
    for mutant in (*OF_THE_FILTER, *OF_LANDLOCK, *OF_THE_LIMITS, *OF_THE_STEPS)
    if mutant.needs != "root" or has_capabilities()
]


def gains(folder: Path, attack: str, mutation: Mapping[str, Json]) -> list[str]:
    folder.mkdir()
    with World(folder) as world:
        return world.gains(run_confined(BY_NAME[attack], world, mutant_program(mutation)))


@pytest.mark.parametrize("mutant", sampled(MUTANTS, 3), ids=lambda mutant: f"{mutant.name}: {mutant.attack}")
def test_an_attack_gains_something_where_an_item_is_missing(tmp_path: Path, mutant: Mutant) -> None:
    assert gains(tmp_path / "mutant", mutant.attack, mutant.mutation) != []
    if mutant.base:
        assert gains(tmp_path / "base", mutant.attack, mutant.base) == []


@pytest.mark.parametrize("right", [right.name for right in landlock.OF_SCRATCH if right.version <= landlock.version()])
def test_ordinary_programs_need_each_right_in_the_scratch_folder(tmp_path: Path, right: str) -> None:
    program = Attack("ordinary", f"{PROGRAMS['files']}\ngain('everything')")
    folders = [tmp_path / "mutant", tmp_path / "real"]
    for folder, mutation, is_possible in zip(folders, ({"scratch_right": right}, {}), (False, True), strict=True):
        folder.mkdir()
        with World(folder) as world:
            output = run_confined(program, world, mutant_program(mutation))
            assert ("GAINED everything" in output) == is_possible, output
