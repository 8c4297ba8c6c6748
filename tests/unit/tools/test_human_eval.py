"""Ordinary programs work in the sandbox: the solutions of HumanEval pass their tests as calls of ``code_interpreter``"""

from collections.abc import Callable

import pytest

from spass.aws.functions import LambdaFunction
from spass.core.code_calls import Sandbox
from spass.sandbox.lambda_ import LambdaLauncher
from spass.sandbox.launchers import LaunchedSandbox, missing_for_processes, select_sandbox
from tests.sampling import sampled
from tests.unit.sandbox.function_client import FunctionClient
from tests.unit.tools.human_eval import PASSED, problems, run_programs

pytestmark = pytest.mark.anyio


def of_processes() -> Sandbox:
    return select_sandbox({"SPASS_SANDBOX": "process"})


def of_functions() -> Sandbox:
    client = FunctionClient()
    return LaunchedSandbox("lambda", lambda: LambdaLauncher(LambdaFunction("spass-code", lambda: client)))


LAUNCHERS = [of_functions] if missing_for_processes() else [of_processes, of_functions]


@pytest.mark.parametrize("sandbox", LAUNCHERS)
async def test_solutions_pass_their_tests(sandbox: Callable[[], Sandbox], record_property: Callable[[str, int], None]) -> None:
    assert len(problems()) == 164
    corpus = sampled(problems(), 4)
    results = await run_programs(sandbox(), [problem.program() for problem in corpus])
    assert [(problem.id, result) for problem, result in zip(corpus, results, strict=True) if result != PASSED] == []
    record_property("programs", len(results))


@pytest.mark.parametrize("sandbox", LAUNCHERS)
async def test_a_wrong_solution_is_an_error_that_the_model_reads(sandbox: Callable[[], Sandbox]) -> None:
    (result,) = await run_programs(sandbox(), [problems()[0].program("    return None\n")])
    assert isinstance(result, dict)
    assert result["output"] == ""
    assert "AssertionError" in str(result["error"])
