"""Write to the terminal or to a pipe: answers to standard output, everything else to standard error."""

import re
import sys
from typing import Final, TextIO

# A model could otherwise move the cursor, change the title or reorder what is shown.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def prepare() -> None:
    """Write a question mark for each character that the output's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def write(text: str) -> None:
    """Write ``text`` to standard output, without control characters if that is a terminal."""
    _write(_CONTROL.sub("", text) if is_terminal(sys.stdout) else text, sys.stdout)


def note(text: str) -> None:
    """Write one line to standard error, without control characters."""
    _write(_CONTROL.sub("", " ".join(text.split())) + "\n", sys.stderr)


def note_lines(text: str) -> None:
    """Write the lines of ``text`` to standard error as they are, without control characters."""
    _write(_CONTROL.sub("", text).rstrip("\n") + "\n", sys.stderr)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether ``stream`` is a terminal. A stream that the shell has closed is None."""
    return stream is not None and stream.isatty()


def _write(text: str, stream: TextIO | None) -> None:
    if stream is not None:
        stream.write(text)
        stream.flush()
