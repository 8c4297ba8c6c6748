"""Evaluate an alarm of a template on the values that AWS sends for its metric, as CloudWatch documents it.

(https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarm-evaluation.html)
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

Period: TypeAlias = Sequence[float]
"""The values that a metric gets in one period. None of them: the period has no data."""
State: TypeAlias = Literal["OK", "ALARM"]

_STATISTICS: Final[Mapping[str, Callable[[Period], float]]] = {
    "Sum": sum,
    "Maximum": max,
    "p99": lambda values: sorted(values)[math.ceil(len(values) * 0.99) - 1],
}
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "GreaterThanOrEqualToThreshold": operator.ge,
    "GreaterThanThreshold": operator.gt,
    "LessThanThreshold": operator.lt,
    "LessThanOrEqualToThreshold": operator.le,
}
_MISSING: Final[Mapping[str, bool]] = {"notBreaching": False, "breaching": True}


def state_after(alarm: Mapping[str, Any], periods: Sequence[Period]) -> State:
    """Return the state of an alarm after these periods, the newest of which is the last one. Before them there was no data.

    Raises:
        KeyError: the alarm has a statistic, a comparison or a treatment of missing data that no alarm of ours should have.
    """
    statistic = _STATISTICS[alarm.get("Statistic") or alarm["ExtendedStatistic"]]
    is_breaching = _COMPARISONS[alarm["ComparisonOperator"]]
    evaluated = [*[()] * alarm["EvaluationPeriods"], *periods][-alarm["EvaluationPeriods"] :]
    breaching = [
        is_breaching(statistic(values), alarm["Threshold"]) if values else _MISSING[alarm["TreatMissingData"]]
        for values in evaluated
    ]
    return "ALARM" if sum(breaching) >= alarm["DatapointsToAlarm"] else "OK"
