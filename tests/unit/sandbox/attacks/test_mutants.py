"""Each item of the policy is needed: without it, an attack gains something."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from spass.core.messages import Json
from tests.child_harness import CHILD
from tests.unit.sandbox.attacks import mutant_child
from tests.unit.sandbox.attacks.attack import has_capabilities
from tests.unit.sandbox.attacks.mutants import OF_LANDLOCK, OF_THE_FILTER, OF_THE_LIMITS, OF_THE_STEPS, Mutant
from tests.unit.sandbox.attacks.runs import run_confined
from tests.unit.sandbox.attacks.table import ATTACKS
from tests.unit.sandbox.attacks.world import World

BY_NAME = {attack.name: attack for attack in ATTACKS}
MUTANTS = [
    mutant
    for mutant in (*OF_THE_FILTER, *OF_LANDLOCK, *OF_THE_LIMITS, *OF_THE_STEPS)
    if mutant.needs != "root" or has_capabilities()
]


def gains(folder: Path, attack: str, mutation: Mapping[str, Json]) -> list[str]:
    program = [str(Path(mutant_child.__file__)), str(CHILD.parent), json.dumps(dict(mutation))]
    folder.mkdir()
    with World(folder) as world:
        return world.gains(run_confined(BY_NAME[attack], world, program))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.name}: {mutant.attack}")
def test_an_attack_gains_something_where_an_item_is_missing(tmp_path: Path, mutant: Mutant) -> None:
    assert gains(tmp_path / "mutant", mutant.attack, mutant.mutation) != []
    if mutant.base:
        assert gains(tmp_path / "base", mutant.attack, mutant.base) == []
