"""The entries of EventBridge Scheduler that send ticks to the queue of runs, in the schedule group of the deployment."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from botocore.exceptions import ClientError

from spass.aws.error_translation import storage_errors
from spass.aws.job_targets import JobTargets
from spass.core.errors import StorageUnavailable
from spass.store.invocation import ServiceCall, invoke_blocking, retry_once
from spass.store.schedules import ScheduleEntry, Schedules

_CONFLICT: Final = "ConflictException"
_ABSENT: Final = "ResourceNotFoundException"
_PUT_ATTEMPTS: Final = 3
_PAGE: Final = 100
_NO_PAGE: Final[Mapping[str, Any]] = {"Schedules": []}
_MAX_AGE_SECONDS: Final = 3600
"""Seconds for which the scheduler tries to send a tick. An older one would run at the wrong time."""


class SchedulerClient(Protocol):
    """The part of boto3's client that this module uses."""

    def create_schedule(self, **parameters: object) -> Mapping[str, Any]: ...

    def update_schedule(self, **parameters: object) -> Mapping[str, Any]: ...

    def delete_schedule(self, *, GroupName: str, Name: str) -> Mapping[str, Any]:  # noqa: N803
        ...

    def get_schedule(self, *, GroupName: str, Name: str) -> Mapping[str, Any]:  # noqa: N803
        ...

    def list_schedules(self, *, GroupName: str, MaxResults: int, NextToken: str = ...) -> Mapping[str, Any]:  # noqa: N803
        ...


class EventBridgeSchedules(Schedules):
    """The entries of the deployment's group."""

    def __init__(self, client: Callable[[], SchedulerClient], targets: JobTargets) -> None:
        """``client``: returns boto3's client; it is called at the first use."""
        self._client = client
        self._targets = targets

    async def put(self, entry: ScheduleEntry) -> None:
        parameters = self._parameters(entry)
        for _ in range(_PUT_ATTEMPTS):
            if await self._call("CreateSchedule", self._client().create_schedule, parameters, _CONFLICT) is not None:
                return
            if await self._call("UpdateSchedule", self._client().update_schedule, parameters, _ABSENT) is not None:
                return
        raise _too_many_changes()

    async def delete(self, name: str) -> None:
        if self._targets.schedule_group is not None:
            await self._call("DeleteSchedule", self._client().delete_schedule, self._key(name), _ABSENT)

    async def get(self, name: str) -> ScheduleEntry | None:
        found = await self._call("GetSchedule", self._client().get_schedule, self._key(name), _ABSENT)
        if found is None:
            return None
        target = found["Target"]
        ours = (target["Arn"], target["RoleArn"]) == (self._targets.runs_queue_arn, self._targets.schedule_role)
        return ScheduleEntry(
            name,
            found["ScheduleExpression"],
            found.get("ScheduleExpressionTimezone", "UTC"),
            target.get("Input", "") if ours and found.get("State") == "ENABLED" else "",
            found.get("ActionAfterCompletion") == "DELETE",
        )

    async def names(self) -> list[str]:
        if self._targets.schedule_group is None:
            return []
        names: list[str] = []
        parameters: dict[str, object] = {"GroupName": self._targets.schedule_group, "MaxResults": _PAGE}
        while True:
            page = await self._call("ListSchedules", self._client().list_schedules, parameters) or _NO_PAGE
            names += (one["Name"] for one in page["Schedules"])
            if not page.get("NextToken"):
                return names
            parameters["NextToken"] = page["NextToken"]

    def _parameters(self, entry: ScheduleEntry) -> dict[str, object]:
        targets = self._targets
        if targets.schedule_group is None or targets.schedule_role is None or targets.runs_queue_arn is None:
            raise StorageUnavailable("This deployment has no schedules.")
        return {
            **self._key(entry.name),
            "ScheduleExpression": entry.expression,
            "ScheduleExpressionTimezone": entry.timezone,
            "State": "ENABLED",
            "ActionAfterCompletion": "DELETE" if entry.once else "NONE",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "Target": {
                "Arn": targets.runs_queue_arn,
                "RoleArn": targets.schedule_role,
                "Input": entry.body,
                "RetryPolicy": {"MaximumEventAgeInSeconds": _MAX_AGE_SECONDS},
            },
        }

    def _key(self, name: str) -> dict[str, str]:
        return {"GroupName": self._targets.schedule_group or "", "Name": name}

    async def _call(
        self,
        operation: str,
        method: Callable[..., Mapping[str, Any]],
        parameters: Mapping[str, object],
        expected: str | None = None,
    ) -> Mapping[str, Any] | None:
        """Return the response, or None after an error with the code ``expected``. An unexpected conflict means that another
        request changes the same entry at this moment."""

        def run() -> Mapping[str, Any] | None:
            with storage_errors():
                try:
                    return method(**parameters)
                except ClientError as error:
                    code = error.response["Error"]["Code"]
                    if code == expected:
                        return None
                    if code == _CONFLICT:
                        raise _too_many_changes() from error
                    raise

        return await retry_once(lambda: invoke_blocking(ServiceCall("scheduler", operation, parameters), run))


def _too_many_changes() -> StorageUnavailable:
    return StorageUnavailable("The schedule is being changed by other requests; try again.", retry_after=1)
