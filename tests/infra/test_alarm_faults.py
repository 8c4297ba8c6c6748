"""Each alarm is raised by the fault that its runbook names, and by nothing less.

The values are those that AWS documents for the metric: an event is a value of 1, an age is in seconds, a latency in milliseconds.
The alarms' metrics of AWS cannot be read from an emulator; the gateway's own metric is compared with real lines by the tests of
the library.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.runbooks import RUNBOOKS

from .alarm_states import Period, state_after
from .conftest import Deployment
from .test_alarms import ONE_EVENT, alarms_of

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """``named`` is the fault in the words of the runbook, ``values`` what the metric gets in five minutes of it, and ``harmless``
    what it gets in the worst five minutes that are no fault."""

    named: str
    values: Period
    harmless: Period


def requests(failed: int, of: int = 1000) -> Period:
    """Return the values of a metric that has one for each request or call."""
    return [1.0] * failed + [0.0] * (of - failed)


def ages(oldest: float) -> Period:
    """Return the values of an age that a queue or stream reports each minute, in seconds."""
    return [oldest - 4 * MINUTE, oldest - 3 * MINUTE, oldest - 2 * MINUTE, oldest - MINUTE, oldest]


def latencies(slow: int, milliseconds: float) -> Period:
    return [milliseconds] * slow + [80.0] * (1000 - slow)


FAULTS = {
    "ServerErrors": Fault("The API answers five requests or more in five minutes with 5xx.", requests(5), requests(4)),
    "SlowAnswers": Fault(
        "One answer in a hundred takes longer than 14.5 minutes.", latencies(11, 880_000), latencies(1000, 14 * MINUTE * 1000)
    ),
    "FunctionErrors": Fault("One is enough, because a sweep", requests(1), requests(0)),
    "FunctionThrottles": Fault("Lambda refused five calls or more in five minutes", [1.0] * 5, [1.0] * 4),
    "AuditNotStored": Fault("could be stored neither in the table nor on the queue of jobs", [1.0], []),
    "OldestJob": Fault("has waited on the queue for 45 minutes", ages(46 * MINUTE), ages(44 * MINUTE)),
    "OldestCompaction": Fault("has not started within five minutes", ages(6 * MINUTE), ages(4.9 * MINUTE)),
    "OldestRun": Fault("has waited on its queue for 45 minutes", ages(46 * MINUTE), ages(44 * MINUTE)),
    "FailedJobs": Fault("A message of the queue of jobs failed in all five attempts.", [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]),
    "UnstartedCompactions": Fault("could not be started for twenty minutes", [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]),
    "FailedRuns": Fault("failed in all three deliveries", [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]),
    "FailedCompactions": Fault("An execution of the state machine failed after all retries.", [1.0], []),
    "TimedOutCompactions": Fault("A compaction did not end within its hour", [1.0], []),
    "TableReadThrottles": Fault("DynamoDB refused ten reads or more in five minutes", [4.0, 6.0], [4.0, 5.0]),
    "TableWriteThrottles": Fault("DynamoDB refused ten writes or more in five minutes", [10.0], [9.0]),
    "DroppedTicks": Fault("The scheduler could not send a tick to the queue of runs for an hour", [1.0], []),
    "ArchiveLate": Fault("Firehose has not written the archive of the audit for an hour.", ages(61 * MINUTE), ages(59 * MINUTE)),
    "FailedBackups": Fault("a backup of the table or the bucket failed last night", [1.0], [0.0]),
    "FailedCopies": Fault("A backup was made, but not copied to the region", [1.0], [0.0]),
}


def test_every_alarm_has_its_fault_in_the_words_of_its_runbook(extended: Deployment) -> None:
    texts = dict(RUNBOOKS)
    assert FAULTS.keys() == texts.keys()
    assert alarms_of(extended).keys() == {name.lower() for name in FAULTS}
    assert [name for name, fault in FAULTS.items() if fault.named not in texts[name]] == []


@pytest.mark.parametrize("name", FAULTS)
def test_an_alarm_is_raised_by_its_fault_alone_and_ends_after_it(extended: Deployment, name: str) -> None:
    alarm, fault = alarms_of(extended)[name.lower()], FAULTS[name]

    def state(*periods: Period) -> str:
        return state_after(alarm, periods)

    is_once = name in ONE_EVENT
    assert state(fault.harmless, fault.values) == ("ALARM" if is_once else "OK"), "one bad period alone"
    for raised in ([fault.values, fault.values], [fault.values, fault.harmless, fault.values], [(), fault.values, fault.values]):
        assert state(*raised) == "ALARM"
    assert state(*[fault.harmless] * 3) == state(*_no_data()) == "OK"
    assert state(fault.values, fault.values, fault.harmless, fault.harmless) == "OK", "it is over after ten minutes"


def _no_data() -> Sequence[Period]:
    return [()] * 3
