"""The product's client of DynamoDB, on an event loop of its own that lives as long as the emulator.

Each test has another loop, and a connection belongs to one. Virtual time must not pass while a call is under way: there a call
blocks the loop of the test.
"""

import asyncio
import threading
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from spass.aws.clients import Aws
from spass.aws.dynamodb import DynamoDBTable
from spass.aws.job_targets import JobTargets
from spass.aws.signing import KeySource
from spass.store.table import TableClient
from tests.unit.virtual_time import VirtualLoop


class OwnLoop:
    """An event loop in a thread, and the ``ServiceClient`` ``client`` on it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def call(
        self, operation: str, request: Mapping[str, object], expected: Collection[str] = (), keys: KeySource | None = None
    ) -> dict[str, Any]:
        work: Coroutine[Any, Any, dict[str, Any]] = self._client.call(operation, request, expected, keys)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            return future.result()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._client.close)
        self._loop.call_soon_threadsafe(self._loop.call_soon, self._loop.stop)
        self._thread.join()
        self._loop.close()


class EmulatedAws(Aws):
    """The product's clients for an emulator."""

    def __init__(self, *, table: str, bucket: str, job_targets: JobTargets) -> None:
        super().__init__(table=table, bucket=bucket, job_targets=job_targets)
        self.own_loop = OwnLoop(self._dynamodb)

    @property
    def _table_client(self) -> TableClient:
        return DynamoDBTable(self.own_loop, self._table)
