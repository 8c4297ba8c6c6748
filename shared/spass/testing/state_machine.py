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
        name, data = self.definition["StartAt"], dict(given)
        while True:
            state = self.definition["States"][name]
            match state["Type"]:
                case "Fail":
                    return False
                case "Choice":
                    name = _chosen(state, data)
                case "Wait":
                    await self.wait(_value(data, state["SecondsPath"]))
                    name = state["Next"]
                case "Task":
                    succeeded = await self._attempt(state, data, given)
                    if succeeded and state.get("End"):
                        return True
                    name = state["Next"] if succeeded or "Catch" not in state else state["Catch"][0]["Next"]
                case other:
                    raise ValueError(f"{name} is a {other}")

    async def _attempt(self, state: Mapping[str, Any], data: dict[str, Any], given: Input) -> bool:
        """Attempt a task until it succeeds or has no retry left. Put its result where its ``ResultPath`` says."""
        retry = next(retry for retry in state["Retry"] if retry["ErrorEquals"] == ["States.ALL"])
        for attempt in range(retry["MaxAttempts"] + 1):
            try:
                result = await self.invoke(_parameters(state, data, given))
            except Exception:  # noqa: BLE001 (as States.ALL)
                delay = retry["IntervalSeconds"] * retry["BackoffRate"] ** attempt
                await self.wait(min(delay, retry["MaxDelaySeconds"]))
            else:
                if path := state.get("ResultPath"):
                    data[path.removeprefix("$.")] = result
                return True
        return False


def _chosen(state: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return the next state after a choice among numbers."""
    for choice in state["Choices"]:
        if _value(data, choice["Variable"]) > choice["NumericGreaterThan"]:
            return str(choice["Next"])
    return str(state["Default"])


def _value(data: Mapping[str, Any], path: str) -> Any:
    value: Any = data
    for name in path.removeprefix("$.").split("."):
        value = value[name]
    return value


def _parameters(state: Mapping[str, Any], data: Mapping[str, Any], given: Input) -> Input:
    """Return a task's parameters: a name that ends with ``.$`` takes the value of the input that its path names, or the input
    ``given`` to the execution."""

    def find(path: str) -> Any:
        return given if path == "$$.Execution.Input" else _value(data, path)

    return {name.removesuffix(".$"): find(value) if name.endswith(".$") else value for name, value in state["Parameters"].items()}
