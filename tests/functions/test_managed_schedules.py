"""Schedules of managed agents over HTTP: what is refused, the entries of the scheduler, and their ticks."""

from collections.abc import Mapping
from typing import Any

import pytest

from spass.testing.aws import MemoryAws
from tests.functions.managed_agents import TARGETS, ManagedClient, execute, tick

MAX_BYTES = 256 * 1024
HOURLY: Mapping[str, object] = {"expression": "rate(1 hour)", "input": "What is new?"}
EIGHT, NINE = "2030-01-31T08:00:00Z", "2030-01-31T09:00:00Z"

BAD_SCHEDULES: Mapping[str, tuple[object, str]] = {
    "no object": ("rate(1 hour)", "schedule"),
    "no expression": ({}, "schedule.expression"),
    "an unknown field": ({"expression": "rate(1 hour)", "at": 1}, "schedule.at"),
    "no language": ({"expression": "every hour"}, "schedule.expression"),
    "a cron of five fields": ({"expression": "cron(0 8 * * *)"}, "schedule.expression"),
    "a cron of seven fields": ({"expression": "cron(0 8 * * ? * *)"}, "schedule.expression"),
    "a cron with both days": ({"expression": "cron(0 8 1 * MON *)"}, "schedule.expression"),
    "a cron out of range": ({"expression": "cron(60 8 * * ? *)"}, "schedule.expression"),
    "no minutes": ({"expression": "rate(0 minutes)"}, "schedule.expression"),
    "negative minutes": ({"expression": "rate(-1 minutes)"}, "schedule.expression"),
    "seconds": ({"expression": "rate(30 seconds)"}, "schedule.expression"),
    "a time in the past": ({"expression": "at(2020-01-01T00:00:00)"}, "schedule.expression"),
    "no day": ({"expression": "at(2030-02-30T00:00:00)"}, "schedule.expression"),
    "an unknown zone": ({"expression": "rate(1 hour)", "timezone": "Mars/Olympus"}, "schedule.timezone"),
    "a path as a zone": ({"expression": "rate(1 hour)", "timezone": "../../etc/passwd"}, "schedule.timezone"),
    "a blank input": ({"expression": "rate(1 hour)", "input": " "}, "schedule.input"),
    "a long input": ({"expression": "rate(1 hour)", "input": "x" * (MAX_BYTES + 1)}, "schedule.input"),
    "a text as enabled": ({"expression": "rate(1 hour)", "enabled": "yes"}, "schedule.enabled"),
}


def entries(aws: MemoryAws) -> list[Mapping[str, Any]]:
    return [*aws.scheduler.entries.values()]


@pytest.mark.parametrize("name", BAD_SCHEDULES)
def test_a_bad_schedule_is_refused_and_neither_stored_nor_scheduled(client: ManagedClient, aws: MemoryAws, name: str) -> None:
    schedule, param = BAD_SCHEDULES[name]
    agent = client.create()
    before = client.gateway.stored()
    body = {"name": "a", "agent": "simple", "schedule": schedule}
    for method, path, sent in (("POST", "", body), ("PATCH", f"/{agent}", {"schedule": schedule, "name": "b"})):
        reply = client.send(method, path, sent)
        assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", param), reply.text
    assert client.gateway.stored() == before
    assert entries(aws) == []


@pytest.mark.parametrize(
    ("schedule", "stored"),
    [
        ({"expression": "rate(5 minutes)", "input": "x"}, {"timezone": "UTC", "input": "x", "enabled": True}),
        ({"expression": "rate(1 day)"}, {"timezone": "UTC", "input": None, "enabled": True}),
        (
            {"expression": "cron(0 8 ? * MON-FRI *)", "timezone": "Europe/Berlin"},
            {"timezone": "Europe/Berlin", "input": None, "enabled": True},
        ),
        ({"expression": "at(2099-01-31T09:00:00)"}, {"timezone": "UTC", "input": None, "enabled": True}),
    ],
    ids=lambda value: str(value.get("expression", "")),
)
def test_a_schedule_is_stored_and_becomes_an_entry(
    client: ManagedClient, aws: MemoryAws, schedule: Mapping[str, object], stored: Mapping[str, object]
) -> None:
    agent = client.create(schedule=schedule)
    assert client.get(agent)["schedule"] == {"expression": schedule["expression"], **stored}
    (entry,) = entries(aws)
    assert (entry["ScheduleExpression"], entry["ScheduleExpressionTimezone"]) == (schedule["expression"], stored["timezone"])
    assert (entry["GroupName"], entry["State"]) == (TARGETS.schedule_group, "ENABLED")
    assert (entry["Target"]["Arn"], entry["Target"]["RoleArn"]) == (TARGETS.runs_queue_arn, TARGETS.schedule_role)
    assert agent not in entry["Name"]
    assert "demo" not in entry["Name"]


def test_the_same_key_makes_one_entry(client: ManagedClient, aws: MemoryAws) -> None:
    body = {"name": "a", "agent": "simple", "schedule": HOURLY}
    for _ in range(2):
        assert client.send("POST", "", body, {"Idempotency-Key": "scheduled-1"}).status == 201
    assert len(entries(aws)) == 1


@pytest.mark.parametrize("change", [{"schedule": None}, {"schedule": {**HOURLY, "enabled": False}}], ids=["null", "off"])
def test_a_schedule_that_is_removed_or_switched_off_has_no_entry(
    client: ManagedClient, aws: MemoryAws, change: Mapping[str, object]
) -> None:
    agent = client.create(schedule=HOURLY)
    assert client.send("PATCH", f"/{agent}", change).status == 200
    assert entries(aws) == []
    assert client.send("PATCH", f"/{agent}", {"schedule": {"expression": "rate(2 hours)"}}).status == 200
    assert [entry["ScheduleExpression"] for entry in entries(aws)] == ["rate(2 hours)"]


def test_a_tick_runs_once_however_often_it_is_delivered(client: ManagedClient, aws: MemoryAws) -> None:
    agent = client.create(schedule=HOURLY)
    (entry,) = entries(aws)
    for receives in range(1, 6):
        tick(client.gateway, entry, EIGHT, receives)
    (request,) = client.gateway.model.requests
    assert request.messages[-1].content == "What is new?"
    (run,) = client.runs(agent)
    assert (run["status"], run["trigger"], run["scheduled_for"]) == ("succeeded", "schedule", "2030-01-31T08:00:00.000Z")
    assert [message["direction"] for message in client.messages(agent)] == ["agent_to_user"]
    tick(client.gateway, entry, NINE)
    assert [run["scheduled_for"][:16] for run in client.runs(agent)] == ["2030-01-31T09:00", "2030-01-31T08:00"]


def test_a_tick_during_a_run_or_a_pause_is_skipped_and_not_made_up_for(client: ManagedClient, aws: MemoryAws) -> None:
    agent = client.create(schedule=HOURLY)
    (entry,) = entries(aws)
    active = client.send("POST", f"/{agent}/run", {"input": "Own."}).json["id"]
    tick(client.gateway, entry, EIGHT)
    execute(client.gateway, agent, active)
    client.send("PATCH", f"/{agent}", {"paused": True})
    tick(client.gateway, entry, NINE)
    assert [(run["trigger"], run["status"]) for run in client.runs(agent) if run["id"] != active] == [("schedule", "skipped")] * 2
    client.send("PATCH", f"/{agent}", {"paused": False})
    for at in (EIGHT, NINE):
        tick(client.gateway, entry, at)
    assert len(client.gateway.model.requests) == 1


def test_a_deleted_agent_never_fires_again(client: ManagedClient, aws: MemoryAws) -> None:
    before = client.gateway.stored()
    agent = client.create(schedule=HOURLY)
    (entry,) = entries(aws)
    client.send("DELETE", f"/{agent}")
    assert entries(aws) == []
    aws.scheduler.entries["spass-test", entry["Name"]] = dict(entry)  # an entry whose deletion was lost
    tick(client.gateway, entry, EIGHT)
    assert entries(aws) == []
    assert client.gateway.model.requests == []
    assert client.gateway.stored() == before
