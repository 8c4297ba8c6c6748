"""The bounds of the code of one turn."""

from dataclasses import dataclass
from typing import Final

MAX_REQUESTS: Final = 64
"""Calls of one wait."""
MAX_REQUEST_CHARS: Final = 4 * 2**20
"""Characters of the calls of one wait. The code is not trusted, and each of its calls is held in memory."""
MAX_LINE_BYTES: Final = 2 * MAX_REQUEST_CHARS
"""Bytes of one line of a child. The gateway does nothing else while it reads a line."""
MAX_VALUES: Final = 100_000
"""Values in one line of a child. Reading millions of them would take seconds, in which the gateway does nothing else."""
MAX_ERROR_CHARS: Final = 10_000
MAX_FINAL_CHARS: Final = 1_000_000
MAX_REASON_CHARS: Final = 1000
MAX_FILES: Final = 1000
"""Files and folders in the scratch folder. Some file systems need milliseconds to remove each."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``cell_cpu``, ``turn_cpu`` and ``cell_wall`` are in seconds, ``memory`` is in bytes. ``cell_wall`` excludes the waits for
    calls to the outside; ``turn_cpu`` includes replays. A batch of calls is one wait.
    """

    cell_cpu: float = 30
    turn_cpu: float = 120
    cell_wall: float = 60
    memory: int = 512 * 2**20
    waits: int = 64


LIMITS: Final = Limits()
