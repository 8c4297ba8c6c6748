"""Dispatch a queue's messages. Each is handled alone; the answer names those that SQS must deliver again."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from spass.core.ids import TenantId
from spass.core.jobs import Delivery
from spass.core.messages import Json
from spass.core.time import Deadline, now
from spass.jobs.messages import Task, Unknown, parse, split
from spass.redaction.log import failure_line, write_line
from spass.store.tenant_store import TenantStore


class NotHandled(Exception):
    """No worker of this queue can handle the task. The text says why, without text from the message."""


Handler: TypeAlias = Callable[[TenantStore, Task, Delivery, Deadline], Awaitable[bool]]
"""Handle a task for its tenant. Return True if it is done, False if its message must be delivered again.

Raises:
    NotHandled: tasks of this type do not come over this queue.
"""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Dispatch messages for the known ``tenants``. Log a message that cannot be handled and count it as done, because it would be
    delivered again and again."""

    tenants: Collection[TenantId]
    store_of: Callable[[TenantId], TenantStore]
    handle: Handler

    async def batch(self, event: Mapping[str, Any], deadline: Deadline) -> Json:
        """Handle the messages of a Lambda event; return the ids of those that are not done, as Lambda expects them.

        Source: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html
        """
        failed: list[Json] = []
        for record in event["Records"]:
            delivery = _delivery(record)
            try:
                done = await self.message(record["body"], delivery, deadline)
            except Exception as error:  # noqa: BLE001 (one message's failure must not stop the next one)
                write_line({**failure_line(error, ""), "event": "job_failed", "message_id": delivery.message})
                done = False
            if not done:
                failed.append({"itemIdentifier": delivery.message})
        return {"batchItemFailures": failed}

    async def message(self, body: str, delivery: Delivery, deadline: Deadline) -> bool:
        """Handle a message. Return True if it is done, False if it must be delivered again.

        Raises:
            Exception: the first unexpected failure of one of its tasks, after the others were handled.
        """
        done = True
        failures: list[Exception] = []
        tasks = [(task, single) for single in split(body) for task in parse(single)]
        for task, own_body in tasks:
            try:
                done = await self._task(task, replace(delivery, body=own_body), deadline) and done
            except NotHandled as error:
                line: dict[str, Json] = {"at": now(), "level": "warning", "event": "job_dropped", "message_id": delivery.message}
                write_line(line | {"why": str(error)})
            except Exception as failure:  # noqa: BLE001 (one event's failure must not stop the next one)
                failures.append(failure)
        if failures:
            raise failures[0]
        return done

    async def _task(self, task: Task | Unknown, delivery: Delivery, deadline: Deadline) -> bool:
        if isinstance(task, Unknown):
            raise NotHandled(task.why)
        if task.tenant not in self.tenants:
            raise NotHandled("the tenant is not known")
        return await self.handle(self.store_of(task.tenant), task, delivery, deadline)


def _delivery(record: Mapping[str, Any]) -> Delivery:
    attributes = record["attributes"]
    return Delivery(
        record["messageId"], int(attributes["ApproximateReceiveCount"]), int(attributes.get("SentTimestamp", 0)) / 1000
    )
