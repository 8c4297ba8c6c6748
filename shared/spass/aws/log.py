"""The log: lines of JSON on standard output, where CloudWatch and the laptop collect them.

No line holds a text that was not written here: of an exception its type and the place, of what a library says that it said
something. What is ours alone is taken out of a line all the same.
"""

import json
import logging
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final

from spass.core.errors import InternalError
from spass.core.messages import Json
from spass.core.time import now
from spass.redaction.text import needs_no_redaction, redact_members, reload_environment

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


_encoded: Final = json.JSONEncoder(separators=(",", ":")).encode


def write_line(line: Mapping[str, Json]) -> None:
    """One line. Where nobody reads the log any more, as behind a closed terminal, the work goes on without it."""
    text = _dumped(line)
    if not needs_no_redaction(text):
        text = _dumped(redact_members(line))
    with suppress(OSError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def failure_line(error: BaseException, request_id: str) -> dict[str, Json]:
    """What the log says of an exception that nobody expected: its type and the innermost place of ours that it passed. Its text
    is left out, for it may hold anything, but where we wrote it.
    """
    return {"at": now(), "level": "error", "request_id": request_id, **_of_exception(error)}


def capture_library_logs() -> None:
    """From now on whatever a library, the interpreter or a thread has to say is a line of ours without its words: they, and the
    trace that goes with them, may name files, addresses and texts of users. Doing so again changes nothing.
    """
    reload_environment()
    root = logging.getLogger()
    root.handlers[:] = [_LibraryLines()]
    root.setLevel(logging.WARNING)
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # what goes wrong in logging would be printed with its trace
    sys.excepthook = _crashed
    sys.unraisablehook = _unraisable
    threading.excepthook = _thread_ended


class _LibraryLines(logging.Handler):
    """Says who said something, how grave it is, and of an exception what ``failure_line`` says of one."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        place = f"{record.module}:{record.funcName}:{record.lineno}"
        line: dict[str, Json] = {"at": now(), "level": record.levelname.lower(), "event": "library", "logger": record.name}
        write_line(line | {"said_at": place} | (_of_exception(error) if error else {}))


def _crashed(kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        write_line(failure_line(error, "") | {"event": "crashed"})


def _unraisable(unraisable: "UnraisableHookArgs") -> None:
    if unraisable.exc_value is not None:
        write_line(failure_line(unraisable.exc_value, "") | {"event": "unraisable"})


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        write_line(failure_line(ended.exc_value, "") | {"event": "thread_failed"})


def _of_exception(error: BaseException) -> dict[str, Json]:
    cause = error.__cause__
    line: dict[str, Json] = {
        "exception": type(error).__qualname__,
        "cause": type(cause).__qualname__ if cause else None,
        "where": _innermost(error.__traceback__),
    }
    return line | {"why": error.message} if isinstance(error, InternalError) else line


def _innermost(trace: TracebackType | None) -> str | None:
    place = None
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(("spass.", "functions.")):
            place = f"{module}:{frame.f_code.co_name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _dumped(line: Mapping[str, Json]) -> str:
    return _encoded(line)
