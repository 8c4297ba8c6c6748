"""The queue of jobs, as a laptop needs it: what was being worked on when it was closed comes back soon."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

# As long as the queue itself hides a message here (`infra/template.py`, which says why); several renewals may be lost.
_HIDDEN_SECONDS: Final = 75
_RENEWED_EVERY: Final = 15.0


class Held:
    """Hides messages for as long as they are worked on."""

    def __init__(self, queue: str) -> None:
        self._queue = queue

    @asynccontextmanager
    async def while_worked_on(self, event: Mapping[str, Any]) -> AsyncIterator[None]:
        """Nobody else gets the messages of this event, if it has any, until the block ends, and about a minute after."""
        handles = [record["receiptHandle"] for record in event.get("Records", ()) if "receiptHandle" in record]
        renewing = asyncio.create_task(self._renew(handles)) if handles else None
        try:
            yield
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.wait({renewing})

    async def _renew(self, handles: list[str]) -> None:
        while True:
            await asyncio.sleep(_RENEWED_EVERY)
            for handle in handles:
                with suppress(BotoCoreError, ClientError):
                    await asyncio.to_thread(self._hide, handle)

    def _hide(self, handle: str) -> None:
        self._client.change_message_visibility(QueueUrl=self._queue, ReceiptHandle=handle, VisibilityTimeout=_HIDDEN_SECONDS)

    @cached_property
    def _client(self) -> "SQSClient":
        return boto3.client("sqs")
