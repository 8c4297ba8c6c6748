"""`spass job`: a task for an agent in the form of a job card."""

import argparse

from spass.cli.input import read_text
from spass.cli.stream_printer import StreamPrinter
from spass.sdk import Spass


def job(client: Spass, options: argparse.Namespace) -> None:
    """Send the card and print the answer as it arrives.

    Raises:
        UsageError: the task cannot be read.
        SpassApiError, SpassUnreachable: there is no answer.
    """
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
