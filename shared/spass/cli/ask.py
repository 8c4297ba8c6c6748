"""`spass ask`: one question, one answer. `spass job`: a task for an agent in the form of a job card."""

import argparse
import json
from pathlib import Path
from typing import Any, Final

from spass.cli.input import read_context, read_text
from spass.cli.stream_printer import StreamPrinter, note_result
from spass.cli.terminal import write
from spass.sdk import Spass

FOREIGN_AGENTS: Final = ("openhands", "claude_code")
"""The kinds that work in a folder: by default, in that of the command."""


def ask(client: Spass, options: argparse.Namespace) -> None:
    """Ask and print the answer. Raise UsageError if an argument names something that cannot be read, and SpassApiError or
    SpassUnreachable if there is no answer."""
    question = read_text(options.text, "question")
    params = dict(options.param)
    if options.agent in FOREIGN_AGENTS:
        params.setdefault("workspace", str(Path.cwd()))
    request: dict[str, Any] = {
        "agent": options.agent,
        "model": options.model,
        "tools": options.tools,
        "system_prompt": options.system,
        "params": params or None,
        "context": None if options.context is None else read_context(options.context),
    }
    if not options.json and not options.no_stream:
        StreamPrinter().print_all(client.stream(question, **request))
        return
    answer = client.ask_full(question, **request)
    if options.json:
        write(json.dumps(answer, ensure_ascii=False) + "\n")
        return
    for result in answer.get("tool_results") or ():
        note_result(str(result.get("tool_name")), result.get("content"), result.get("duration_ms"))
    write(answer["content"] + "\n")


def job(client: Spass, options: argparse.Namespace) -> None:
    """Send the card and print the answer as it arrives. Raise UsageError if the task cannot be read, and SpassApiError or
    SpassUnreachable if there is no answer."""
    task = read_text(options.text, "task")
    events = client.job_card(
        options.agent,
        options.title,
        task,
        files=options.file,
        acceptance=options.acceptance,
        model=options.model,
        workspace=options.workspace,
    )
    StreamPrinter().print_all(events)
