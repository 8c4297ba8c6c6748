"""Parse and dispatch a queue's messages: jobs of ours, or events of the bucket. Each is handled alone; the answer names those
that SQS must deliver again."""

import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote_plus

from spass.core.ids import TenantId
from spass.core.jobs import Delivery, Job, WorkKind, job_of, kind_of
from spass.core.messages import Json
from spass.core.time import Deadline, now
from spass.rag.ingest.uploaded_file import UploadedFile, uploaded_file
from spass.redaction.log import failure_line, write_line
from spass.store.tenant_store import TenantStore

if TYPE_CHECKING:
    from spass.observability.tracer import Tracer  # loaded only if the operator exports spans

_CREATED: Final = "ObjectCreated:"
_NO_VERSION: Final = ("", "null")  # an object that was put while the bucket kept no versions
_SEQUENCER_DIGITS: Final = 64  # S3 sends 16 or 18
_SEQUENCER: Final = re.compile(rf"[0-9A-Fa-f]{{1,{_SEQUENCER_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message or event that no worker can handle. ``why`` contains no text from it."""

    why: str


Task: TypeAlias = Job | UploadedFile


def split(body: str) -> list[str]:
    """Return the bodies of messages with one task each: a message of the bucket may hold several events."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return [body]
    match message:
        case {"Records": [_, _, *_] as events}:
            return [json.dumps({"Records": [event]}) for event in events]
    return [body]


def parse(body: str) -> list[Task | Unknown]:
    """Return the tasks of a message: several if it holds several events, none if it is the bucket's test event.

    The bucket's events: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return [Unknown("the message is not JSON")]
    match message:
        case {"Event": "s3:TestEvent"}:
            return []
        case {"Records": [*events]}:
            return [task for event in events for task in _file(event)]
    return [job_of(message) or Unknown("the message is not a known job")]


def _file(event: object) -> Iterator[UploadedFile | Unknown]:
    """Yield the file of ``event``. Skip the empty object that the S3 console puts for a folder."""
    match event:
        case {"eventName": str(name), "s3": {"object": {"key": str(quoted), **details}}}:
            key = unquote_plus(quoted)
            if not name.removeprefix("s3:").startswith(_CREATED):
                yield Unknown("the event does not tell of an object that was put")
            elif not (key.endswith("/") and details.get("size") == 0):
                version = next(_texts(details, "versionId"), None)
                revision = next(_texts(details, "versionId", "sequencer", "eTag"), "")
                file = uploaded_file(key, version, revision, _sequencer(details.get("sequencer")))
                yield file or Unknown("the key does not name an index of a tenant")
        case _:
            yield Unknown("the event is not known")


def _sequencer(sequencer: object) -> str:
    """Return a sequencer padded with zeros on the right, so that sequencers compare as strings. Empty if it is malformed.

    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html
    """
    if not isinstance(sequencer, str) or not _SEQUENCER.fullmatch(sequencer):
        return ""
    return sequencer.lower().ljust(_SEQUENCER_DIGITS, "0")


def _texts(details: Mapping[Any, object], *names: str) -> Iterator[str]:
    values = (details.get(name) for name in names)
    return (value for value in values if isinstance(value, str) and value not in _NO_VERSION)


class NotHandled(Exception):
    """No worker of this queue can handle the task. The text says why, without text from the message."""


Handler: TypeAlias = Callable[[TenantStore, Task, Delivery, Deadline], Awaitable[bool]]
"""Handle a task for its tenant. Return True if it is done, False if its message must be delivered again.

Raises:
    NotHandled: tasks of this type do not come over this queue.
"""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Dispatch messages for the known ``tenants``, each in a trace of ``tracer`` if there is one. Log a message that cannot be
    handled and count it as done, because it would be delivered again and again."""

    tenants: Collection[TenantId]
    store_of: Callable[[TenantId], TenantStore]
    handle: Handler
    tracer: "Tracer | None" = None

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
        work = self.handle(self.store_of(task.tenant), task, delivery, deadline)
        if self.tracer is None:
            return await work
        queue = WorkKind.FILES if isinstance(task, UploadedFile) else kind_of(task)
        return await self.tracer.trace_message(work, task.tenant, queue, delivery)


def _delivery(record: Mapping[str, Any]) -> Delivery:
    attributes = record["attributes"]
    return Delivery(
        record["messageId"], int(attributes["ApproximateReceiveCount"]), int(attributes.get("SentTimestamp", 0)) / 1000
    )
