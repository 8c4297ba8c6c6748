"""Ask an interpreter for its version and its packages, and remember the answer for a while."""

import subprocess
import time
from collections.abc import Sequence
from typing import Final

_KEEP_SECONDS: Final = 20.0
_PROBE_SECONDS: Final = 10.0
_answers: Final[dict[tuple[str, ...], tuple[float, str]]] = {}


def probe(command: Sequence[str]) -> str:
    """Return what a short command prints, or an empty text if it fails. An answer is remembered for 20 seconds."""
    key = tuple(command)
    at, answer = _answers.get(key, (0.0, ""))
    if at and time.monotonic() - at < _KEEP_SECONDS:
        return answer
    try:
        done = subprocess.run(key, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False, stdin=subprocess.DEVNULL)  # noqa: S603
        answer = done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.SubprocessError, ValueError):
        answer = ""
    _answers[key] = (time.monotonic(), answer)
    return answer
