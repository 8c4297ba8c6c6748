"""The documentation tells what each launcher confines, what it does not, and which attack shows it."""

import re
from pathlib import Path

import pytest

from tests.unit.sandbox.attacks.attack import Attack
from tests.unit.sandbox.attacks.known import KNOWN
from tests.unit.sandbox.attacks.runs import run_confined
from tests.unit.sandbox.attacks.table import ATTACKS
from tests.unit.sandbox.attacks.world import World

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "code.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## What the sandbox confines", 1)[1].split("\n## ", 1)[0]
CONFINED, NOT_CONFINED = (re.findall(r"(?m)^\| (?!code|---)(.+) \|$", part) for part in SECTION.split("### What code learns", 1))


@pytest.mark.parametrize("attack", KNOWN, ids=lambda attack: attack.name)
def test_code_gains_what_the_documentation_admits(tmp_path: Path, attack: Attack) -> None:
    with World(tmp_path) as world:
        assert world.gains(run_confined(attack, world)) != []


def test_each_line_of_the_documentation_names_attacks() -> None:
    attacks = {attack.name for attack in ATTACKS}
    named = [re.findall(r"“(.+?)”", row) for row in CONFINED]
    assert len(named) >= 12
    assert all(named)
    assert {name for names in named for name in names} <= attacks


def test_the_documentation_admits_each_known_gain() -> None:
    named = {name for row in NOT_CONFINED for name in re.findall(r"“(.+?)”", row)}
    assert named == {attack.name for attack in KNOWN}
