"""End work for which nobody waits any more."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from spass.calls.scope import Scope
from spass.web.exchange import Exchange

T = TypeVar("T")


async def run_for_client(exchange: Exchange, client: Receive, work: Callable[[Scope], Awaitable[T]]) -> T:
    """Run ``work``. End it if the client disconnects while its first model call waits for capacity: nothing was called yet, and
    nothing is to be paid. Work with an Idempotency-Key goes on, so that its answer is stored for the client's retry.

    ``client`` is the ASGI receive function. A function in AWS is not told of a disconnect.

    Raises:
        ClientDisconnect: the client disconnected, and the work was ended.
    """
    if exchange.idempotency is not None:
        return await work(exchange.scope)
    waiting = _Waiting(client)
    try:
        return await work(replace(exchange.scope, sleep=waiting.sleep))
    except asyncio.CancelledError:
        if waiting.client_left:
            raise ClientDisconnect from None
        raise


class _Waiting:
    """The waiting of one request. Nothing watches the client at other times, so a request that never waits costs nothing more."""

    def __init__(self, client: Receive) -> None:
        self._client = client
        self.client_left = False

    async def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``. If the client disconnects, raise CancelledError, which ends the call as a cancellation does."""
        disconnect = asyncio.ensure_future(wait_for_disconnect(self._client))
        try:
            await asyncio.wait({disconnect}, timeout=seconds)
            if disconnect.done():
                self.client_left = True
                raise asyncio.CancelledError
        finally:
            disconnect.cancel()


async def wait_for_disconnect(client: Receive) -> None:
    """Wait until the ASGI receive function ``client`` says that the client has disconnected."""
    while True:
        message = await client()
        if message["type"] == "http.disconnect":
            return
