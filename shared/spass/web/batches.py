"""A batch of a queue's messages: each is carried out for itself, and those that shall come again are named in the answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spass.aws.log import failure_line, write_line
from spass.core.messages import Json


@dataclass(frozen=True, slots=True)
class Message:
    """What a queue delivers; ``deliveries`` counts how often it has."""

    id: str
    body: str
    deliveries: int


async def carried_out(event: Mapping[str, Any], work: Callable[[Message], Awaitable[bool]]) -> Json:
    """What a worker answers to the ``event`` of its queue. ``work`` says whether a message is done with; one that is not, or that
    fails, shall come again.
    (https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html)
    """
    failed: list[Json] = []
    for record in event["Records"]:
        message = Message(record["messageId"], record["body"], int(record["attributes"]["ApproximateReceiveCount"]))
        try:
            done = await work(message)
        except Exception as error:  # noqa: BLE001 (one message's failure is not the next one's)
            write_line({**failure_line(error, ""), "event": "job_failed", "message_id": message.id})
            done = False
        if not done:
            failed.append({"itemIdentifier": message.id})
    return {"batchItemFailures": failed}
