"""AWS calls run in threads. A cancelled caller waits for a write, and for nothing else."""

import asyncio
import threading
from typing import Final

import pytest

from spass.store.invocation import ServiceCall, invoke_blocking

pytestmark = pytest.mark.anyio

WRITES: Final = ["PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "PutObject", "DeleteObject", "SendMessage"]
READS: Final = ["GetItem", "Query", "GetObject", "HeadObject", "ListObjectsV2"]


@pytest.mark.parametrize(("operation", "waits"), [*((name, True) for name in WRITES), *((name, False) for name in READS)])
async def test_a_cancelled_caller_waits_for_a_write_and_not_for_a_read(operation: str, waits: bool) -> None:
    started, released, ended = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        started.set()
        released.wait(10)
        ended.set()

    call = asyncio.create_task(invoke_blocking(ServiceCall("service", operation, {}), run))
    assert await asyncio.to_thread(started.wait, 10)
    call.cancel()
    done, _ = await asyncio.wait({call}, timeout=0.05)
    assert bool(done) != waits
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.wait(10)
