"""End work for which nobody waits any more."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from spass.calls.scope import Scope
from spass.web.exchange import Exchange

T = TypeVar("T")


async def run_for_client(exchange: Exchange, client: Receive, work: Callable[[Scope], Awaitable[T]]) -> T:
    """Run ``work``. End it if the client disconnects while its first model call waits for capacity: nothing was called yet, and
    nothing is to be paid. Work with an Idempotency-Key goes on, so that its answer is stored for the client's retry.

    ``client`` is the ASGI receive function. A function in AWS is not told of a disconnect. Raise ClientDisconnect if the client
    disconnected, and the work was ended.
    """
    if exchange.idempotency is not None:
        return await work(exchange.scope)
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 (only a callback of the event loop runs outside of a task)
    waiting = _Waiting(client, task)
    try:
        return await work(replace(exchange.scope, sleep=waiting.sleep))
    except asyncio.CancelledError:
        if waiting.client_left and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise


class _Waiting:
    """The waiting of one request, which runs in ``task``. Nothing watches the client at other times, so a request that never
    waits costs nothing more."""

    def __init__(self, client: Receive, task: "asyncio.Task[Any]") -> None:
        self._client = client
        self._task = task
        self.client_left = False

    async def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``. If the client disconnects, cancel the request: the sleeper may be one of several tasks of it."""
        disconnect = asyncio.ensure_future(wait_for_disconnect(self._client))
        try:
            await asyncio.wait({disconnect}, timeout=seconds)
            if disconnect.done():
                if not self.client_left:
                    self.client_left = True
                    self._task.cancel()
                await asyncio.Event().wait()  # until the cancellation arrives
        finally:
            disconnect.cancel()


async def wait_for_disconnect(client: Receive) -> None:
    """Wait until the ASGI receive function ``client`` says that the client has disconnected."""
    while True:
        message = await client()
        if message["type"] == "http.disconnect":
            return
