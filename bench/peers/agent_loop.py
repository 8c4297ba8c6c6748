"""Run pydantic-ai's agent with its own test model, for ``bench.kinds``. ``.venv-peers`` has this package.

Each line of the input is a number of runs and "tool" or "text". The line of the output has the seconds that the runs took and the
number of their model calls.
"""

import asyncio
import sys
import time

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel


def add(a: int, b: int) -> int:
    """Return the sum of a and b."""
    return a + b


AGENTS = {
    "tool": Agent(TestModel(custom_output_text="The sum is 3."), instructions="Answer briefly.", tools=[add]),
    "text": Agent(TestModel(custom_output_text="The sum is 3."), instructions="Answer briefly."),
}


async def run(agent: Agent, runs: int) -> tuple[float, int]:
    calls = 0
    began = time.perf_counter()
    for _ in range(runs):
        result = await agent.run("What is 1 + 2?")
        calls += result.usage.requests
        assert result.output == "The sum is 3."
    return time.perf_counter() - began, calls


def main() -> None:
    for line in sys.stdin:
        runs, name = line.split()
        seconds, calls = asyncio.run(run(AGENTS[name], int(runs)))
        print(seconds, calls, flush=True)


if __name__ == "__main__":
    main()
