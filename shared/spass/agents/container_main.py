"""Run a kind, or an interpreter, in the image ``spass-sandbox``, and exchange lines with the gateway.

The first line of standard input is the payload, one object of JSON:

- With ``agent_id``, the kind of this key runs with ``params``, ``prompt`` and ``context``. Each effect is a line on standard
  output; a line ``{"result": …}`` continues the kind, and ``{"interrupt": true}`` says that its model calls are used up. The
  answer ends the program.
- With ``"interpreter": true``, no kind runs, and the program ends with its input.

In both, ``{"start": …}`` starts a child that runs code (``sandbox/child``), ``{"send": …}`` sends it a line and
``{"kill": true}`` ends it. What it writes arrives as effects of the types ``Child``, ``Processor`` and, once per start,
``Ended``.
``ContainerChildren`` is the other end.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Final

from spass.agents.kinds.base import AgentContext
from spass.agents.kinds.registry import KINDS
from spass.agents.kinds.source import Source
from spass.core.codec import decode_message, encode_message
from spass.core.effect_codec import decode_result
from spass.core.effects import Answer, Effect
from spass.core.errors import InternalError
from spass.core.json import dump_line
from spass.sandbox.child_process import hide_memory
from spass.sandbox.container_code_host import ContainerCodeHost
from spass.sandbox.program_answer import EFFECT, OUTPUT_END, OUTPUT_START

_STDOUT: Final = 1


async def serve() -> None:
    """Read the payload, do what it says, and write the answer."""
    children = ContainerCodeHost(lambda message: _write(f"{EFFECT} {dump_line(message)}"))
    await children.connect()
    payload = await children.next_line() or {}
    if "agent_id" in payload:
        answer = await _run_kind(payload, children)
    elif payload.get("interpreter"):
        while await children.next_line() is not None:
            pass
        answer = {}
    else:
        answer = _failure("The payload names no agent_id.")
    await children.close()
    _write(f"{OUTPUT_START}\n{dump_line(answer)}\n{OUTPUT_END}")


async def _run_kind(payload: Mapping[str, Any], children: ContainerCodeHost) -> Mapping[str, Any]:
    try:
        agent = KINDS.get(payload["agent_id"])(**_parameters(payload["params"]))
        source = agent.open(payload["prompt"], decode_message(AgentContext, payload["context"], "AgentContext"), tenant_id="")
    except (LookupError, TypeError, ValueError) as error:
        return _failure(f"The image cannot run the agent kind {payload['agent_id']!r}: {error}")
    try:
        effect = await source.start()
        while not isinstance(effect, Answer):
            effect = await _continue(source, effect, children)
    except InternalError as error:
        return _failure(error.message)
    encoded = encode_message(effect)
    assert isinstance(encoded, Mapping)  # noqa: S101 (a dataclass is an object)
    return encoded


async def _continue(source: Source, effect: Effect, children: ContainerCodeHost) -> Effect | Answer:
    """Ask the gateway for ``effect``, and return what follows."""
    _write(f"{EFFECT} {dump_line(encode_message(effect))}")
    while True:
        line = await children.next_line()
        if line is None:
            raise InternalError("The gateway closed the pipe.")
        if "interrupt" not in line:
            return await source.send(decode_result(effect, line["result"]))
        if (instead := await source.interrupt()) is not None:
            return instead
        _write(f"{EFFECT} {dump_line({'type': 'Unhandled'})}")


def _parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a kind. JSON has lists where they have tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}


def _failure(message: str) -> dict[str, Any]:
    return {"type": "Failure", "message": message}


def _write(text: str) -> None:
    rest = memoryview(text.encode("utf-8", "replace") + b"\n")
    while rest:
        rest = rest[os.write(_STDOUT, rest) :]


def main() -> None:
    """Hide the memory of this process, which has the secrets of the payload, from the code beside it, and serve."""
    hide_memory()
    asyncio.run(serve())
