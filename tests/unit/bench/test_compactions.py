"""A bench carries a compaction out as the state machine would, and its dollars are those of the list."""

import json
from decimal import Decimal

import pytest

from bench.compactions import Invocation, Machine, total_usage
from bench.meter import Meter, MeteredCall
from infra.costs.prices import ResourceUsage
from local.home import ROOT

NOTHING = ResourceUsage(read_units=0, write_units=0, gb_seconds=0, invocations=0)


@pytest.fixture
def machine() -> Machine:
    return Machine(json.loads((ROOT / "infra/compaction.asl.json").read_text()))


def test_the_steps_are_called_in_the_machines_order_with_ids_alone(machine: Machine) -> None:
    steps = list(machine.steps({"tenant": "acme", "job": "job_1"}))
    ids = {"tenant": "acme", "job": "job_1", "input": {"tenant": "acme", "job": "job_1"}}
    assert steps == [{"step": "plan", **ids}, {"step": "summarise", **ids, "may_wait": True}, {"step": "commit", **ids}]


def test_a_transition_leads_into_each_step_and_out_of_the_last(machine: Machine) -> None:
    assert machine.transitions == 5


def test_a_machine_that_waits_is_not_followed() -> None:
    waits = Machine({"StartAt": "Rest", "States": {"Rest": {"Type": "Wait", "Seconds": 1, "Next": "End"}}})
    with pytest.raises(SystemExit, match="Rest"):
        list(waits.steps({}))


def test_a_thousand_compactions_cost_what_the_list_says() -> None:
    work = ResourceUsage(
        read_units=10,
        write_units=20,
        gb_seconds=3,
        invocations=5,
        api_requests=1,
        queue_requests=3,
        transitions=4,
        bucket_puts=1,
        bucket_gets=2,
        schedules=6,
    )
    assert work.dollars(1000) == {
        "DynamoDB": Decimal("0.016775"),
        "Step Functions": Decimal("0.1"),
        "Lambda": Decimal("0.0410002"),
        "SQS": Decimal("0.0012"),
        "EventBridge": Decimal("0.006"),
        "API Gateway": Decimal("0.0037"),
        "S3": Decimal("0.00626"),
    }
    assert sum(NOTHING.dollars(1000).values()) == 0


def test_what_parts_take_is_added_up_and_time_is_billed_by_the_started_millisecond() -> None:
    asked = Invocation(
        "POST …/compact", 1024, Meter(made=[MeteredCall("dynamodb", "Query", 7), MeteredCall("sqs", "SendMessage", 0)]), 0.0101
    )
    worked = Invocation(
        "step commit", 512, Meter(made=[MeteredCall("dynamodb", "TransactWriteItems", 9), MeteredCall("s3", "PutObject", 0)]), 2.0
    )
    assert total_usage([asked, worked], transitions=4) == ResourceUsage(
        read_units=7,
        write_units=9,
        gb_seconds=0.011 + 1,
        invocations=2,
        api_requests=1,
        queue_requests=3,
        transitions=4,
        bucket_puts=1,
    )
