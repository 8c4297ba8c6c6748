"""The operator of the demo: its second run knows what the first one left."""

from typing import Any, Final

from local.demo_calls import DemoFailed, Walk

_OPERATOR: Final = "/v1/operators/demo-walk"
_ASK: Final = {"agent": "operative", "params": {"operator_id": "demo-walk"}, "tools": ["memory_store", "memory_search"]}
_FACT: Final = "the pump in the cellar was repaired on Tuesday"


def show_operator(step: Walk) -> None:
    """Run an operator twice, and show what it keeps.

    Raises:
        DemoFailed: the second run does not know what the first one stored, or something is missing in its state or notes.
    """
    step.title("26. An operator remembers from one run to the next")
    step.call("DELETE", _OPERATOR)
    step.ask_kind({**_ASK, "input": f"Remember under the key pump that {_FACT}."}, expect="", uses={"memory_store"})
    step.note("The second run goes on in the same session, and finds the state that the first one left:")
    step.ask_kind({**_ASK, "input": "When was the pump repaired?"}, expect="Tuesday", uses=())
    operator: dict[str, Any] = step.call("GET", _OPERATOR)
    if "Tuesday" not in operator["state"]["answer"] or operator["notes"] != 1:
        raise DemoFailed("The state should be the last run's input and answer, beside one note")
    (note,) = step.call("GET", f"{_OPERATOR}/notes")["notes"]
    if note["key"] != "pump" or _FACT.casefold() not in note["content"].casefold():
        raise DemoFailed("The note should be what the first run stored")
    step.call("DELETE", _OPERATOR)
