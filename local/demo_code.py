"""The models of the demo that write code: over data that no prompt contains, and over a table in the conversation."""

from collections.abc import Mapping
from typing import Any, Final

from local.demo_calls import DemoFailed, Walk

_TABLE: Final = """\
district,area_km2,parks
Mitte,39.5,12
Pankow,103.1,40
Neukölln,44.9,9
Spandau,91.9,31
"""
_LOG: Final = "".join(f"{hour:02}:00 {'error: disk full' if hour % 5 == 0 else 'ok'}\n" for hour in range(24))
_CODE: Final = "code_interpreter"


def show_code(step: Walk) -> None:
    """Ask both kinds that write code. If the gateway cannot run code, say why.

    Raises:
        DemoFailed: an answer is wrong, or was given without code.
    """
    step.title("25. A model writes code that runs in a sandbox")
    kinds = {kind["key"]: kind for kind in step.call("GET", "/v1/kinds")["kinds"]}
    if not kinds["rlm"]["available"]:
        step.note(f"This gateway runs no code: {kinds['rlm']['reason']}")
        return
    if step.tool(_CODE, {"code": "print(sum(range(101)))"}) != {"output": "5050\n", "error": None, "truncated": 0}:
        raise DemoFailed("The sum of the numbers to 100 should be 5050")
    step.note("The kind rlm keeps the text out of the prompt: the model reads only its size, and writes code over it.")
    _ask(step, {"agent": "rlm", "input": "How many lines mention error?", "context": _LOG}, expect="5 lines")
    _ask(step, {"agent": "rlm", "input": "What is the sum of the column area_km2?", "context": _TABLE}, expect="279.4")
    step.note("The kind native_openhands reads the table, and computes with code:")
    _ask(step, {"agent": "native_openhands", "input": "What is the sum of parks?", "context": _TABLE}, expect="92")


def _ask(step: Walk, request: Mapping[str, Any], *, expect: str) -> None:
    step.ask_kind(request, expect=expect, uses={_CODE})
