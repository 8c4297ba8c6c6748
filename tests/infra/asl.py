"""Readers of the definition of a state machine."""

import json
from pathlib import Path
from typing import Any


def read(definition: Path) -> dict[str, Any]:
    machine: dict[str, Any] = json.loads(definition.read_text(encoding="utf-8"))
    return machine


def tasks(states: dict[str, Any]) -> dict[str, Any]:
    """Return the steps that call the function."""
    return {name: state for name, state in states.items() if state["Type"] == "Task"}


def longest(retry: dict[str, Any]) -> float:
    """Return the sum of all pauses between attempts, in seconds."""
    pauses = (retry["IntervalSeconds"] * float(retry["BackoffRate"]) ** n for n in range(retry["MaxAttempts"]))
    return float(sum(min(pause, retry["MaxDelaySeconds"]) for pause in pauses))
