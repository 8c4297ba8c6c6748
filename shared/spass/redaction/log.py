"""The log: lines of JSON on standard output, which CloudWatch or a developer's terminal collects.

A line contains only text that this code wrote. For an exception it has the type and the place; for a library's record, the logger
and the place. Secrets are redacted in addition.
"""

import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Final

from spass.core.errors import InternalError
from spass.core.messages import Json
from spass.core.time import now
from spass.redaction.text import needs_no_redaction, redact_members, reload_environment

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


_uses_stderr: Final[ContextVar[bool]] = ContextVar("spass_log_uses_stderr", default=False)


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Write the lines of the body to standard error: a script's standard output is its own."""
    before = _uses_stderr.get()
    _uses_stderr.set(True)
    try:
        yield
    finally:
        _uses_stderr.set(before)  # an iterator that is closed in another context cannot reset a token


def write_line(line: Mapping[str, Json]) -> None:
    """Write one line. Ignore a closed output, such as a closed terminal: the work continues without the log."""
    text = _encode(line)
    if not needs_no_redaction(text):
        text = _encode(redact_members(line))
    output = sys.stderr if _uses_stderr.get() else sys.stdout
    with suppress(OSError):
        output.write(text + "\n")
        output.flush()


def write_event(event: str, fields: Mapping[str, Json], *, level: str = "warning") -> None:
    """Write the line of an event that happened now."""
    write_line({"at": now(), "level": level, "event": event, **fields})


def failure_line(error: BaseException, request_id: str) -> dict[str, Json]:
    """Return the line of an unexpected exception: its type, and the innermost place of our code in its traceback (of an
    ``InternalError``: of its cause). Omit its text, which may contain secrets or texts of users, unless it is ours."""
    return {"at": now(), "level": "error", "request_id": request_id, **_exception_fields(error)}


def capture_library_logs() -> None:
    """Log each record of a library, the interpreter or a thread as a line without its text, which may contain paths, addresses
    and texts of users."""
    reload_environment()
    root = logging.getLogger()
    root.handlers[:] = [_LibraryLines()]
    root.setLevel(logging.WARNING)
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # logging would print its own failures with their traces
    sys.excepthook = _log_crash
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_thread_failure


class _LibraryLines(logging.Handler):
    """Log a record's logger, place and level, and its exception as ``failure_line`` does."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        place = f"{record.module}:{record.funcName}:{record.lineno}"
        line: dict[str, Json] = {"at": now(), "level": record.levelname.lower(), "event": "library", "logger": record.name}
        write_line(line | {"said_at": place} | (_exception_fields(error) if error else {}))


def _log_crash(kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        write_line(failure_line(error, "") | {"event": "crashed"})


def _log_unraisable(unraisable: "UnraisableHookArgs") -> None:
    if unraisable.exc_value is not None:
        write_line(failure_line(unraisable.exc_value, "") | {"event": "unraisable"})


def _log_thread_failure(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        write_line(failure_line(args.exc_value, "") | {"event": "thread_failed"})


def _exception_fields(error: BaseException) -> dict[str, Json]:
    cause = error.__cause__
    # The event list of a turn carries an InternalError to its readers, so its own traceback shows only the reader.
    origin = cause if cause is not None and isinstance(error, InternalError) else error
    line: dict[str, Json] = {
        "exception": type(error).__qualname__,
        "cause": type(cause).__qualname__ if cause else None,
        "where": _innermost(origin.__traceback__) or _innermost(error.__traceback__),
    }
    told = next((known for known in (cause, error) if isinstance(known, InternalError)), None)
    return line | {"why": told.message} if told is not None else line


def _innermost(trace: TracebackType | None) -> str | None:
    place = None
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(("spass.", "functions.")):
            place = f"{module}:{frame.f_code.co_name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
