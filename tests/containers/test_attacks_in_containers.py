"""The attacks gain nothing in containers either, and the solutions of HumanEval pass there.

``SPASS_SOAK=1 make test-containers`` runs all 164 solutions, each in a container of its own, otherwise every twelfth.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import Cell
from spass.sandbox import ContainerRunner
from spass.sandbox.container_child import ContainerLauncher
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.launchers import LaunchedSandbox
from spass.sandbox.limits import Limits
from tests.sampling import sampled
from tests.unit.sandbox.attacks.attack import PRELUDE, Attack
from tests.unit.sandbox.attacks.table import ATTACKS
from tests.unit.sandbox.attacks.world import World
from tests.unit.tools.human_eval import PASSED, problems, run_programs

pytestmark = pytest.mark.anyio

MAX_OUTPUT = 200_000
TOGETHER = 12
"""Attacks that share a container: those that do not end their process."""
LASTING = [attack for attack in ATTACKS if not attack.ends]
GROUPS = [LASTING[at : at + TOGETHER] for at in range(0, len(LASTING), TOGETHER)]
GROUPS += [[attack] for attack in ATTACKS if attack.ends]


@pytest.fixture
def launcher(runtime: str, image: str) -> ContainerLauncher:
    return ContainerLauncher(ContainerRunner(image=image, runtime=runtime, timeout=120))


async def refuse(_: Sequence[CodeRequest]) -> Sequence[CallReply]:
    raise AssertionError("an attack called the outside")


@pytest.mark.parametrize("attacks", GROUPS, ids=lambda attacks: attacks[0].name)
async def test_attacks_gain_nothing_in_a_container(
    tmp_path: Path, launcher: ContainerLauncher, attacks: Sequence[Attack]
) -> None:
    with World(tmp_path) as world:
        turn = TurnInterpreter(launcher, "tenant", "owner", Limits(cell_cpu=2))
        try:
            for attack in attacks:
                cell = Cell(PRELUDE + attack.code, variables={"W": world.names()}, max_output_chars=MAX_OUTPUT)
                result = await turn.run(cell, (), refuse)
                assert (attack.name, world.gains(f"{result.output}\n{result.error}")) == (attack.name, [])
                assert not attack.ends or result.error is not None
        finally:
            await turn.close()


async def test_the_solutions_of_human_eval_pass_in_containers(launcher: ContainerLauncher) -> None:
    corpus = sampled(problems(), 12)
    sandbox = LaunchedSandbox("container", lambda: launcher)
    results = await run_programs(sandbox, [problem.program() for problem in corpus])
    assert [(problem.id, result) for problem, result in zip(corpus, results, strict=True) if result != PASSED] == []
