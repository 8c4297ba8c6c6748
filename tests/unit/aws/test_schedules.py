"""The entries of EventBridge Scheduler: written, read and deleted, whatever the scheduler answers."""

from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from spass.aws.job_targets import JobTargets
from spass.core.errors import InternalError, StorageUnavailable
from spass.store.schedules import ScheduleEntry
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject

pytestmark = pytest.mark.anyio

TARGETS = JobTargets(
    runs_queue_arn="arn:aws:sqs:eu-central-1:1:runs", schedule_group="group", schedule_role="arn:aws:iam::1:role/clock"
)
ENTRY = ScheduleEntry("a1", "rate(5 minutes)", "Europe/Berlin", '{"job": "tick"}', once=False)
OTHER = replace(ENTRY, expression="at(2030-01-01T00:00:00)", body="{}", once=True)


@pytest.fixture
def aws() -> MemoryAws:
    return MemoryAws(TARGETS)


async def test_an_entry_sends_its_body_to_the_queue_of_runs_with_the_role(aws: MemoryAws) -> None:
    await aws.schedules.put(ENTRY)
    assert aws.scheduler.entries == {
        ("group", "a1"): {
            "GroupName": "group",
            "Name": "a1",
            "ScheduleExpression": "rate(5 minutes)",
            "ScheduleExpressionTimezone": "Europe/Berlin",
            "State": "ENABLED",
            "ActionAfterCompletion": "NONE",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "Target": {
                "Arn": "arn:aws:sqs:eu-central-1:1:runs",
                "RoleArn": "arn:aws:iam::1:role/clock",
                "Input": '{"job": "tick"}',
                "RetryPolicy": {"MaximumEventAgeInSeconds": 3600},
            },
        }
    }


@pytest.mark.parametrize("entry", [ENTRY, OTHER])
async def test_what_was_put_is_read_back(aws: MemoryAws, entry: ScheduleEntry) -> None:
    await aws.schedules.put(entry)
    assert await aws.schedules.get("a1") == entry


async def test_an_entry_with_the_same_name_is_replaced(aws: MemoryAws) -> None:
    await aws.schedules.put(ENTRY)
    await aws.schedules.put(OTHER)
    assert await aws.schedules.get("a1") == OTHER
    assert len(aws.scheduler.entries) == 1


async def test_deleting_is_repeatable_and_an_absent_entry_reads_as_none(aws: MemoryAws) -> None:
    await aws.schedules.put(ENTRY)
    for _ in range(2):
        await aws.schedules.delete("a1")
        assert await aws.schedules.get("a1") is None


@pytest.mark.parametrize("count", [0, 1, 100, 101, 250])
async def test_all_names_of_the_group_are_listed(aws: MemoryAws, count: int) -> None:
    aws.scheduler.entries[("default", "stranger")] = {}
    for number in range(count):
        await aws.schedules.put(replace(ENTRY, name=f"entry-{number}"))
    assert sorted(await aws.schedules.names()) == sorted(f"entry-{number}" for number in range(count))


@pytest.mark.parametrize(
    "change",
    [
        {"State": "DISABLED"},
        {"Target": {"Arn": "arn:aws:sqs:eu-central-1:1:other", "RoleArn": TARGETS.schedule_role, "Input": ENTRY.body}},
        {"Target": {"Arn": TARGETS.runs_queue_arn, "RoleArn": "arn:aws:iam::1:role/admin", "Input": ENTRY.body}},
        {"Target": {"Arn": TARGETS.runs_queue_arn, "RoleArn": TARGETS.schedule_role}},
    ],
    ids=["disabled", "another queue", "another role", "no input"],
)
async def test_an_entry_that_does_not_send_to_the_queue_of_runs_differs(aws: MemoryAws, change: dict[str, Any]) -> None:
    await aws.schedules.put(ENTRY)
    aws.scheduler.entries["group", "a1"] |= change
    found = await aws.schedules.get("a1")
    assert found == replace(ENTRY, body="")


async def test_a_deployment_without_a_group_has_no_entries() -> None:
    schedules = MemoryAws().schedules
    assert await schedules.names() == []
    await schedules.delete("a1")
    with pytest.raises(StorageUnavailable, match="no schedules"):
        await schedules.put(ENTRY)


@pytest.mark.parametrize("fault", [fault for fault in Fault if "crash" not in fault])
@pytest.mark.parametrize("before", [None, OTHER], ids=["absent", "present"])
async def test_one_failure_of_any_call_does_not_prevent_a_put(aws: MemoryAws, fault: Fault, before: ScheduleEntry | None) -> None:
    points = 0
    while True:
        if before is not None:
            await aws.schedules.put(before)
        with inject(FaultPlan(fault, at=points)) as plan:
            await aws.schedules.put(ENTRY)
        assert await aws.schedules.get("a1") == ENTRY
        await aws.schedules.delete("a1")
        if len(plan.calls) <= points:
            break
        points += 1
    assert points >= 1


async def test_a_scheduler_that_does_not_answer_is_unavailable(aws: MemoryAws) -> None:
    with inject(FaultPlan(Fault.THROTTLE, times=2)), pytest.raises(StorageUnavailable):
        await aws.schedules.put(ENTRY)
    with inject(FaultPlan(Fault.CRASH_AFTER)), pytest.raises(Crash):
        await aws.schedules.put(ENTRY)
    assert await aws.schedules.get("a1") == ENTRY


async def test_an_entry_that_the_scheduler_refuses_is_an_error_of_ours(aws: MemoryAws, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": "ValidationException", "Message": "Invalid Schedule Expression"}}, "CreateSchedule")

    monkeypatch.setattr(aws.scheduler, "create_schedule", refuse)
    with pytest.raises(InternalError, match="ValidationException"):
        await aws.schedules.put(ENTRY)


async def test_a_name_that_others_create_and_delete_all_the_time_is_unavailable(
    aws: MemoryAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    await aws.schedules.put(ENTRY)

    def vanish(**_: object) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "gone"}}, "UpdateSchedule")

    monkeypatch.setattr(aws.scheduler, "update_schedule", vanish)
    with pytest.raises(StorageUnavailable, match="other requests"):
        await aws.schedules.put(OTHER)


@pytest.mark.parametrize("operation", ["update_schedule", "delete_schedule"])
async def test_a_conflict_with_another_change_is_retried_and_then_unavailable(
    aws: MemoryAws, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The service answers so if two requests change one entry at the same moment."""
    await aws.schedules.put(ENTRY)
    call = aws.schedules.put(OTHER) if operation == "update_schedule" else aws.schedules.delete("a1")
    original, conflicts = getattr(aws.scheduler, operation), [1, 1]

    def conflict(**parameters: Any) -> Any:
        if conflicts:
            conflicts.pop()
            raise ClientError({"Error": {"Code": "ConflictException", "Message": "inconsistent state"}}, operation)
        return original(**parameters)

    monkeypatch.setattr(aws.scheduler, operation, conflict)
    with pytest.raises(StorageUnavailable, match="other requests"):
        await call
    conflicts.append(1)
    await (aws.schedules.put(OTHER) if operation == "update_schedule" else aws.schedules.delete("a1"))
    assert await aws.schedules.get("a1") == (OTHER if operation == "update_schedule" else None)
