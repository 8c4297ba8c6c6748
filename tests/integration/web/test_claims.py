"""A request with an ``Idempotency-Key`` renews its claim while it runs, and stops if it loses the claim."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message

from spass.core.errors import IdempotencyInProgress
from spass.core.time import now_s
from spass.journal.frames import DONE, Frame, json_frame
from spass.store import keys, leases
from spass.store.idempotency import Claim, acquire
from spass.store.leases import LEASE_SECONDS, LeaseLost
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete
from spass.tenancy.response_model import ResponseModel
from spass.web.exchange import Exchange
from spass.web.idempotency import RouteResult, run_idempotently, stream_idempotently
from spass.web.services import Services
from tests.unit.idempotent_requests import idempotent_request

pytestmark = pytest.mark.anyio

KEY = idempotent_request("digest", "body")
Work = Callable[[], Awaitable[None]]
Send = Callable[[Exchange, Work], Awaitable[Any]]


class _Scope:
    """The part of a request's scope that storing an answer needs."""

    def __init__(self, store: TenantStore) -> None:
        self.store = store


class _Exchange(Exchange):
    """An exchange whose scope has only a store, in a process without a configuration."""

    def __init__(self, store: TenantStore) -> None:
        super().__init__(idempotency=KEY, _services=Services())
        self._store = store

    @property
    def scope(self) -> Any:
        return _Scope(self._store)


class Done(ResponseModel):
    done: bool


async def _send_blocking(exchange: Exchange, work: Work) -> Any:
    async def answer(_: Claim | None) -> RouteResult:
        await work()
        return RouteResult(Done(done=True))

    return await run_idempotently(exchange, answer)


async def _receive_nothing() -> Message:
    """Wait forever, as the client does not disconnect."""
    await asyncio.Event().wait()
    raise AssertionError


async def _send_streaming(exchange: Exchange, work: Work) -> Any:
    async def frames() -> AsyncGenerator[Frame, None]:
        yield json_frame({"begun": True})
        await work()
        yield json_frame({"done": True})
        yield DONE

    response = await stream_idempotently(exchange, _receive_nothing, frames, answer=lambda: Done(done=True), replay=lambda _: ())
    body = b"".join([bytes(part) async for part in response.body_iterator])  # type: ignore[attr-defined]
    if b'"error"' in body:
        assert b"[DONE]" not in body
        raise LeaseLost(body.decode())
    return response


SENDS = pytest.mark.parametrize("send", [_send_blocking, _send_streaming], ids=["blocking", "streaming"])


@pytest.fixture(autouse=True)
def _renew_every_20_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.store.idempotency.renewing", functools.partial(leases.renewing, every=0.02))


@SENDS
async def test_a_long_request_renews_its_claim(store: TenantStore, monkeypatch: pytest.MonkeyPatch, send: Send) -> None:
    now = now_s()

    async def long_work() -> None:
        # Advance the clock past the expiry of the original claim.
        for number in range(1, 4):
            monkeypatch.setattr("spass.store.idempotency.now_s", lambda at=now + number * (LEASE_SECONDS - 10): at)
            await asyncio.sleep(0.1)
        with pytest.raises(IdempotencyInProgress):
            await acquire(store, KEY)

    await send(_Exchange(store), long_work)
    assert not isinstance(await acquire(store, KEY), Claim)


@SENDS
async def test_a_request_that_loses_its_claim_stops_and_stores_no_answer(store: TenantStore, send: Send) -> None:
    is_finished = False

    async def lose_claim() -> None:
        nonlocal is_finished
        await store.table.write(Delete(keys.idempotency(store.tenant, KEY.digest)))
        await asyncio.sleep(5)
        is_finished = True

    with pytest.raises(LeaseLost):
        await send(_Exchange(store), lose_claim)
    assert not is_finished
    assert isinstance(await acquire(store, KEY), Claim)
