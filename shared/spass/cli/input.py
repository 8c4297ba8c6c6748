"""Read what the arguments name: the standard input and files."""

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO, Final

MAX_BYTES: Final = 4 * 1024 * 1024
"""The gateway accepts no larger request."""


class UsageError(Exception):
    """An argument names something that cannot be read."""


def read_text(text: str, what: str) -> str:
    """Return ``text``, or the standard input if it is ``-``, without the line break at its end. ``what`` names it in errors.
    Raise UsageError if there is no text that can be sent."""
    if text == "-":
        if sys.stdin is None:
            raise UsageError("the standard input is closed.")
        text = _read(sys.stdin.buffer, "the standard input").removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise UsageError(f"the {what} is empty.")
    return text


def read_context(path: str) -> str | dict[str, Any]:
    """Return the text of a file, or the object in a ``.json`` file. Raise UsageError if the file cannot be read, or is not a JSON
    object."""
    try:
        with Path(path).open("rb") as file:
            text = _read(file, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if not path.endswith(".json"):
        return text
    try:
        context = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply.") from None
    if not isinstance(context, dict):
        raise UsageError(f'{path} is not a JSON object. Write {{"conversation": […], "memory_results": […]}}.')
    return context


def _read(file: BinaryIO, name: str) -> str:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES // 2**20} MiB.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8.") from None
