"""Code that writes lines of the protocol itself, and computes on while the gateway believes them."""

import asyncio
import time
from pathlib import Path
from typing import Final

_FIND: Final = """
import gc
connection = next(each for each in gc.get_objects() if type(each).__name__ == "Connection" and hasattr(each, "send"))
"""
FORGED_CALL: Final = f"""{_FIND}
connection.send("effect", {{"cell": 0, "hash": "", "requests": [{{"query": "forged"}}]}})
while True:
    pass
"""
FORGED_END: Final = f"""{_FIND}
report = {{"number": 0, "output": "forged", "error": None, "truncated": 0, "final": None, "exceeded": None}}
connection.send("cell", report)
while True:
    pass
"""
WRITING: Final = f"""{_FIND}
import os
pipe, token = connection._output, connection._token.encode()
"""
"""``os.write(pipe, …)`` then writes to the gateway."""
_ENOUGH_SECONDS: Final = 0.2


async def has_stopped(process: int) -> bool:
    """Return True if the process is stopped, and False if it goes on to compute."""
    began = _used_seconds(process)
    while not (is_stopped := _state(process) == "T") and _used_seconds(process) - began < _ENOUGH_SECONDS:
        await asyncio.sleep(0.01)
    return is_stopped


def _state(process: int) -> str:
    """Return the kernel's letter: R for a process that computes, T for one that is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]


def _used_seconds(process: int) -> float:
    return time.clock_gettime((~process << 3) | 2)
