"""EventBridge Scheduler in memory. It fires nothing: a test reads its entries and sends their ticks."""

import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from botocore.exceptions import ClientError

_NAME: Final = re.compile(r"[0-9a-zA-Z-_.]{1,64}")
_PARAMETERS: Final = {
    "GroupName",
    "Name",
    "ScheduleExpression",
    "ScheduleExpressionTimezone",
    "State",
    "ActionAfterCompletion",
    "FlexibleTimeWindow",
    "Target",
}


class MemoryScheduler:
    """The entries of all groups, for any number of threads. ``entries`` maps a group and a name to the parameters of the call
    that wrote the entry. ``updates`` counts the calls that replaced one."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], dict[str, Any]] = {}
        self.updates = 0
        self._lock = threading.Lock()

    def create_schedule(self, **parameters: Any) -> Mapping[str, Any]:
        key = _checked(parameters)
        with self._lock:
            if key in self.entries:
                raise _error("ConflictException", "CreateSchedule")
            self.entries[key] = parameters
        return {"ScheduleArn": f"arn:aws:scheduler:eu-central-1:000000000000:schedule/{'/'.join(key)}"}

    def update_schedule(self, **parameters: Any) -> Mapping[str, Any]:
        key = _checked(parameters)
        with self._lock:
            if key not in self.entries:
                raise _error("ResourceNotFoundException", "UpdateSchedule")
            self.entries[key] = parameters
            self.updates += 1
        return {"ScheduleArn": f"arn:aws:scheduler:eu-central-1:000000000000:schedule/{'/'.join(key)}"}

    def delete_schedule(self, *, GroupName: str, Name: str) -> Mapping[str, Any]:  # noqa: N803
        with self._lock:
            if self.entries.pop((GroupName, Name), None) is None:
                raise _error("ResourceNotFoundException", "DeleteSchedule")
        return {}

    def get_schedule(self, *, GroupName: str, Name: str) -> Mapping[str, Any]:  # noqa: N803
        with self._lock:
            if (GroupName, Name) not in self.entries:
                raise _error("ResourceNotFoundException", "GetSchedule")
            return dict(self.entries[GroupName, Name])

    def list_schedules(self, *, GroupName: str, MaxResults: int, NextToken: str = "") -> Mapping[str, Any]:  # noqa: N803
        """List the entries of a group by name. The token is the last name of the page before."""
        with self._lock:
            names = sorted(name for group, name in self.entries if group == GroupName and name > NextToken)
        page = names[:MaxResults]
        return {"Schedules": [{"Name": name} for name in page]} | ({"NextToken": page[-1]} if len(names) > len(page) else {})


def _checked(parameters: Mapping[str, Any]) -> tuple[str, str]:
    assert parameters.keys() == _PARAMETERS, parameters.keys()
    target = parameters["Target"]
    assert all(isinstance(target[name], str) and target[name] for name in ("Arn", "RoleArn", "Input")), target
    assert _NAME.fullmatch(parameters["Name"]), parameters["Name"]
    return parameters["GroupName"], parameters["Name"]


def _error(code: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": 409}}, operation)  # type: ignore[typeddict-item]
