"""Hide the messages that a worker on the laptop works on. If the laptop is closed, they become visible again within 75 s."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import boto3
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

# The visibility timeout of the local queues (`infra/template.py` gives the reason). Several renewals in a row may fail.
_VISIBILITY_TIMEOUT_SECONDS: Final = 75


class InFlightMessage(NamedTuple):
    """A received message: the URL of its queue and its receipt handle."""

    queue: str
    handle: str


class MessageVisibility:
    """Hide messages while a worker works on them. ``queues`` are the URLs of the queues that they come from. ``extend`` hides a
    message anew, every ``renew_seconds``."""

    def __init__(
        self, queues: Iterable[str], *, renew_seconds: float = 15.0, extend: Callable[[InFlightMessage], object] | None = None
    ) -> None:
        self._urls = {url.rpartition("/")[2]: url for url in queues}
        self._renew_seconds = renew_seconds
        self._extend = extend or self._extend_timeout

    @asynccontextmanager
    async def hide(self, event: Mapping[str, Any]) -> AsyncIterator[None]:
        """Hide the messages of ``event``, if it has any, from other consumers until the block ends, and about a minute longer."""
        records = [record for record in event.get("Records", ()) if "receiptHandle" in record]
        messages = [InFlightMessage(self._urls[_queue_name(record)], record["receiptHandle"]) for record in records]
        renewal = asyncio.create_task(self._renew(messages)) if messages else None
        try:
            yield
        finally:
            if renewal is not None:
                renewal.cancel()
                await asyncio.wait({renewal})

    async def _renew(self, messages: list[InFlightMessage]) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            for message in messages:
                with suppress(BotoCoreError, ClientError):
                    await asyncio.to_thread(self._extend, message)

    def _extend_timeout(self, message: InFlightMessage) -> None:
        self._client.change_message_visibility(
            QueueUrl=message.queue, ReceiptHandle=message.handle, VisibilityTimeout=_VISIBILITY_TIMEOUT_SECONDS
        )

    @cached_property
    def _client(self) -> "SQSClient":
        return boto3.client("sqs")


def _queue_name(record: Mapping[str, Any]) -> str:
    return str(record["eventSourceARN"]).rpartition(":")[2]
