"""Run one command, and turn every failure into a message and an exit code."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from spass.cli.parser import parse
from spass.cli.terminal import note, prepare

if TYPE_CHECKING:
    from spass.sdk import Spass, SpassApiError

OK: Final = 0
ERROR_ANSWER: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

_START: Final = "Start a gateway with `make run` in a checkout of Spass, or set SPASS_URL."
_HINTS: Final = {
    "missing_token": "Set SPASS_TOKEN.",
    "invalid_token": "Check SPASS_TOKEN.",
    "user_id_required": "Set SPASS_USER.",
    "nothing_to_run": "Give the run an input (--input TEXT), or send a message first.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in ``arguments`` (default: those of the process) and return its exit code."""
    try:
        options = parse(arguments)
        prepare()
        return _run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has ended
        _discard_output()
        return ERROR_ANSWER
    except OSError as error:  # for example a full disk; errors of the connection and of files are translated where they occur
        _discard_output()
        note(f"spass: The output cannot be written: {error.strerror}.")
        return ERROR_ANSWER


def _discard_output() -> None:
    """Send what is still buffered nowhere: Python would fail once more when it flushes the output at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(options: argparse.Namespace) -> int:
    from spass.cli.input import UsageError
    from spass.sdk import Spass, SpassApiError, SpassUnreachable

    try:
        client = Spass()
    except ValueError as error:
        note(f"spass: {error}")
        return USAGE
    with client:
        try:
            return _dispatch(options, client)
        except UsageError as error:
            note(f"spass: {error}")
            return USAGE
        except SpassApiError as error:
            report(error)
            return ERROR_ANSWER
        except SpassUnreachable as error:
            note(f"spass: {error}")
            note(_START)
            return UNREACHABLE


def _dispatch(options: argparse.Namespace, client: "Spass") -> int:
    """Run the command. Import what it alone uses."""
    match options.command:
        case "ask" | "job":
            from spass.cli.ask import ask, job

            (ask if options.command == "ask" else job)(client, options)
        case "chat":
            from spass.cli.chat import chat

            return ERROR_ANSWER if chat(client, options.agent, report) else OK
        case "managed":
            from spass.cli.managed import managed

            managed(client, options)
        case listing:
            from spass.cli.listing import LISTINGS

            LISTINGS[listing](client)
    return OK


def report(error: "SpassApiError") -> None:
    """Write the code and the message of an error answer to standard error."""
    note(f"spass: {error}")
    if hint := _HINTS.get(error.code):
        note(hint)
    for line in getattr(error, "__notes__", ()):
        note(line)
    if error.request_id:
        note(f"request id: {error.request_id}")
