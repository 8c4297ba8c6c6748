"""Report the progress of an edit often enough that a client sees that it continues."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from spass.calls.scope import ReportProgress

MAX_SILENCE: Final = 4.0
"""Seconds without a line of progress."""


@asynccontextmanager
async def report_while_working(report: ReportProgress) -> AsyncIterator[ReportProgress]:
    """Report a line whenever nothing was reported for four seconds while the body runs. The body reports by the function that it
    gets."""
    started = last = time.monotonic()

    def report_now(text: str) -> None:
        nonlocal last
        last = time.monotonic()
        report(text)

    async def work() -> None:
        while True:
            await asyncio.sleep(max(0.0, last + MAX_SILENCE - time.monotonic()))
            if time.monotonic() - last >= MAX_SILENCE:
                report_now(f"Still at work after {time.monotonic() - started:.0f} s.")

    task = asyncio.create_task(work())
    try:
        yield report_now
    finally:
        task.cancel()
