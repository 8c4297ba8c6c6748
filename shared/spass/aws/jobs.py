"""Work that a request leaves to others: messages on the queues, and the state machines."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import ClientError

from spass.aws.faults import AwsCall, invoke
from spass.aws.places import WorkPlaces
from spass.aws.translate import storage_errors
from spass.core.errors import StorageUnavailable
from spass.core.ids import IndexId, JobId, TenantId, UploadId
from spass.core.messages import Json

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_stepfunctions import SFNClient

T = TypeVar("T")


class TenantJobs:
    """Asks for work on one tenant's things."""

    def __init__(
        self, sqs: "Callable[[], SQSClient]", states: "Callable[[], SFNClient]", places: WorkPlaces, tenant: TenantId
    ) -> None:
        self._sqs = sqs
        self._states = states
        self._places = places
        self._tenant = tenant

    @property
    def in_parts(self) -> bool:
        """Whether there is a state machine that ingests the parts of a large file side by side."""
        return self._places.ingest_machine is not None

    async def merge(self, index: IndexId) -> None:
        """Ask for the segments of ``index`` to be merged.

        Raises:
            StorageUnavailable: the queue does not answer; it may or may not have been asked.
        """
        await self._send({"job": "merge", "tenant": self._tenant, "index": index})

    async def ingest(self, index: IndexId, upload: UploadId) -> None:
        """Ask for an upload to be worked on from where it stands; raises as ``merge``."""
        await self._send({"job": "ingest", "tenant": self._tenant, "index": index, "upload": upload})

    async def account(self, record: Mapping[str, str | int]) -> None:
        """Ask for the record of a call to be accounted for, which could not be done when the call ended.

        Raises:
            StorageUnavailable: the queue does not answer, or there is none.
        """
        if self._places.queue is None:
            raise StorageUnavailable("There is no queue of jobs.")
        await self._send({"job": "account", "tenant": self._tenant, "record": record})

    async def start_parts(self, index: IndexId, upload: UploadId, parts: Sequence[int], *, failures: int = 0) -> None:
        """Start the state machine on the parts of an upload, after so many ``failures`` of earlier executions: after each there
        is one more, however often it is started. The number tells its steps from those of the others.

        Raises:
            StorageUnavailable: it may or may not have been started.
        """
        work: dict[str, Json] = {
            "tenant": self._tenant,
            "index": index,
            "upload": upload,
            "execution": failures,
            "parts": list(parts),
        }
        await self._start(self._places.ingest_machine, f"{upload}_{failures}" if failures else upload, work)

    async def compact(self, job: JobId) -> None:
        """Ask for a compaction to be carried out whose record stands.

        Raises:
            StorageUnavailable: the queue does not answer, or there is none; it may or may not have been asked.
        """
        if self._places.compaction_queue is None:
            raise StorageUnavailable("There is no queue of compactions.")
        await self._send({"job": "compact", "tenant": self._tenant, "id": job}, self._places.compaction_queue)

    async def start_compaction(self, job: JobId) -> None:
        """Start the state machine on a compaction; however often it is started, it runs once.

        Raises:
            StorageUnavailable: it may or may not have been started.
        """
        await self._start(self._places.compaction_machine, job, {"tenant": self._tenant, "job": job})

    async def _start(self, machine: str | None, name: str, work: Mapping[str, Json]) -> None:
        if machine is None:
            raise RuntimeError("there is no such state machine")
        parameters = {"stateMachineArn": machine, "name": name, "input": json.dumps(work)}
        try:
            await _call("states", "StartExecution", self._states().start_execution, parameters)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ExecutionAlreadyExists":
                raise

    async def _send(self, body: Mapping[str, Json], queue: str | None = None) -> None:
        url = queue or self._places.queue
        if url is not None:
            parameters = {"QueueUrl": url, "MessageBody": json.dumps(body)}
            await _call("sqs", "SendMessage", self._sqs().send_message, parameters)


async def _call(service: str, operation: str, method: Callable[..., T], parameters: Mapping[str, object]) -> T:
    def run() -> T:
        with storage_errors():
            return method(**parameters)

    return await invoke(AwsCall(service, operation, parameters), run)
