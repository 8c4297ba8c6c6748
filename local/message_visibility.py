"""The queues of work, as a laptop needs them: what was being worked on when it was closed comes back soon."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import boto3
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

# As long as the queue of jobs hides a message here (`infra/template.py`, which says why); several renewals may be lost.
_HIDDEN_SECONDS: Final = 75
_RENEWED_EVERY: Final = 15.0


class InFlightMessage(NamedTuple):
    """One that was taken: from which queue, by its URL, and what it is known by there."""

    queue: str
    handle: str


class MessageVisibility:
    """Hides messages for as long as they are worked on. ``queues`` are the URLs of those they may come from."""

    def __init__(self, queues: Iterable[str]) -> None:
        self._urls = {url.rpartition("/")[2]: url for url in queues}

    @asynccontextmanager
    async def while_worked_on(self, event: Mapping[str, Any]) -> AsyncIterator[None]:
        """Nobody else gets the messages of this event, if it has any, until the block ends, and about a minute after."""
        records = [record for record in event.get("Records", ()) if "receiptHandle" in record]
        messages = [InFlightMessage(self._urls[_queue_name(record)], record["receiptHandle"]) for record in records]
        renewing = asyncio.create_task(self._renew(messages)) if messages else None
        try:
            yield
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.wait({renewing})

    async def _renew(self, messages: list[InFlightMessage]) -> None:
        while True:
            await asyncio.sleep(_RENEWED_EVERY)
            for message in messages:
                with suppress(BotoCoreError, ClientError):
                    await asyncio.to_thread(self._hide, message)

    def _hide(self, message: InFlightMessage) -> None:
        self._client.change_message_visibility(
            QueueUrl=message.queue, ReceiptHandle=message.handle, VisibilityTimeout=_HIDDEN_SECONDS
        )

    @cached_property
    def _client(self) -> "SQSClient":
        return boto3.client("sqs")


def _queue_name(record: Mapping[str, Any]) -> str:
    return str(record["eventSourceARN"]).rpartition(":")[2]
