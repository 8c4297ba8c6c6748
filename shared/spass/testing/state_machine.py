"""A state machine in process: what Spass uses of the Amazon States Language (https://states-language.net)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

Input = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StateMachine:
    """Run executions of ``definition``. ``invoke`` runs a task with its parameters; an attempt that raises an Exception has
    failed. ``wait`` sleeps between two attempts, for a number of seconds."""

    definition: Mapping[str, Any]
    invoke: Callable[[Input], Awaitable[object]]
    wait: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def run(self, given: Input) -> bool:
        """Run an execution with the input ``given``. Return False if it ends in a ``Fail`` state."""
        name = self.definition["StartAt"]
        while True:
            state = self.definition["States"][name]
            if state["Type"] == "Fail":
                return False
            assert state["Type"] == "Task", name
            succeeded = await self._attempt(state, _parameters(state, given))
            if succeeded and state.get("End"):
                return True
            name = state["Next"] if succeeded or "Catch" not in state else state["Catch"][0]["Next"]

    async def _attempt(self, state: Mapping[str, Any], parameters: Input) -> bool:
        retry = next(retry for retry in state["Retry"] if retry["ErrorEquals"] == ["States.ALL"])
        for attempt in range(retry["MaxAttempts"] + 1):
            try:
                await self.invoke(parameters)
            except Exception:  # noqa: BLE001 (as States.ALL)
                delay = retry["IntervalSeconds"] * retry["BackoffRate"] ** attempt
                await self.wait(min(delay, retry["MaxDelaySeconds"]))
            else:
                return True
        return False


def _parameters(state: Mapping[str, Any], given: Input) -> Input:
    """Return a task's parameters: a name that ends with ``.$`` takes the value of the input that its path names."""
    return {
        name.removesuffix(".$"): given[value.removeprefix("$.")] if name.endswith(".$") else value
        for name, value in state["Parameters"].items()
    }
