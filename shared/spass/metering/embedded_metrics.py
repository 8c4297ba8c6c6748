"""Metrics in lines of the log. CloudWatch reads them from the line (the embedded metric format), so no call of an API is needed:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from collections.abc import Mapping
from typing import Final

from spass.core.messages import Json
from spass.core.time import Timestamp, epoch_ms

NAMESPACE_VARIABLE: Final = "SPASS_METRICS_NAMESPACE"
"""The variable of a function with the namespace of its metrics. Without it there are none."""


def metric_metadata(namespace: str, units: Mapping[str, str], at: Timestamp, *, dimension: str | None = None) -> Json:
    """Return the value of a line's ``_aws``: the fields of the line that are metrics, with their units, and the field that is
    their dimension."""
    definitions: list[Json] = [{"Name": name, "Unit": unit} for name, unit in units.items()]
    dimensions: list[Json] = [[dimension] if dimension else []]
    directive: dict[str, Json] = {"Namespace": namespace, "Dimensions": dimensions, "Metrics": definitions}
    return {"Timestamp": epoch_ms(at), "CloudWatchMetrics": [directive]}
