"""The gateway for ``bench.stream``. A request with the header ``Bench-Journal: off`` streams without the journal's writer."""

import asyncio
from contextvars import ContextVar
from typing import Final
from unittest.mock import patch

from starlette.types import ASGIApp, Receive, Scope, Send

from bench.gateway import app as gateway
from spass.journal.writer import JournalWriter

JOURNAL_OFF: Final = {"Bench-Journal": "off"}

_is_off: Final = ContextVar("journal_is_off", default=False)
_run: Final = JournalWriter.run


async def _run_unless_off(writer: JournalWriter) -> None:
    if _is_off.get():
        await asyncio.Event().wait()
    await _run(writer)


class JournalSwitch:
    """Set the switch of each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _is_off.set(scope["type"] == "http" and (b"bench-journal", b"off") in scope["headers"])
        await self._app(scope, receive, send)


patch.object(JournalWriter, "run", _run_unless_off).start()
app = JournalSwitch(gateway)
