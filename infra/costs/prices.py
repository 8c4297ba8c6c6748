"""List prices of eu-central-1, on demand, arm64, in US dollars, and the AWS cost of a piece of work by them, without free tiers.

Every price of the repository is here. Change them here if AWS does, or for another region.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

READ_UNIT: Final = Decimal("0.1525") / 1_000_000  # https://aws.amazon.com/dynamodb/pricing/on-demand/
WRITE_UNIT: Final = Decimal("0.7625") / 1_000_000
TRANSITION: Final = Decimal("0.025") / 1_000  # https://aws.amazon.com/step-functions/pricing/
INVOCATION: Final = Decimal("0.20") / 1_000_000  # https://aws.amazon.com/lambda/pricing/
GB_SECOND: Final = Decimal("0.0000133334")
QUEUE_REQUEST: Final = Decimal("0.40") / 1_000_000  # https://aws.amazon.com/sqs/pricing/
SCHEDULE: Final = Decimal("1.00") / 1_000_000  # https://aws.amazon.com/eventbridge/pricing/
API_REQUEST: Final = Decimal("3.70") / 1_000_000  # https://aws.amazon.com/api-gateway/pricing/
BUCKET_PUT: Final = Decimal("0.0054") / 1_000  # https://aws.amazon.com/s3/pricing/
BUCKET_GET: Final = Decimal("0.00043") / 1_000
BUCKET_GB_MONTH: Final = Decimal("0.0245")
TRAFFIC_GB: Final = Decimal("0.09")  # https://aws.amazon.com/ec2/pricing/on-demand/, out to the internet
LOG_GB: Final = Decimal("0.63")  # https://aws.amazon.com/cloudwatch/pricing/
ALARM_MONTH: Final = Decimal("0.10")
METRIC_MONTH: Final = Decimal("0.30")
KEY_READ: Final = Decimal("0.05") / 10_000  # https://aws.amazon.com/systems-manager/pricing/, with the higher quota
DASHBOARD_MONTH: Final = Decimal("3.00")
FREE_DASHBOARDS: Final = 3
ARCHIVED_GB: Final = Decimal("0.031")  # https://aws.amazon.com/firehose/pricing/
ARCHIVED_RECORD: Final = 5 * 1024  # bytes: each record is billed as a multiple of this
# https://aws.amazon.com/lambda/pricing/: a new virtual machine of a tenant id, for each GB of its memory
MACHINE_GB: Final = Decimal("0.000133334")
SNAPSHOT_GB_SECOND: Final = Decimal("0.0000015046")
KEY_MONTH: Final = Decimal("1.00")  # https://aws.amazon.com/kms/pricing/
WEB_ACL_MONTH: Final = Decimal("5.00")  # https://aws.amazon.com/waf/pricing/
WEB_RULE_MONTH: Final = Decimal("1.00")
WEB_REQUEST: Final = Decimal("0.60") / 1_000_000
TABLE_GB_MONTH: Final = Decimal("0.306")  # https://aws.amazon.com/dynamodb/pricing/on-demand/
STREAM_BYTES: Final = (
    10 * 1024**2
)  # https://aws.amazon.com/api-gateway/pricing/: a streamed answer is billed as a request for each


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """The AWS usage of a piece of work, without a model's tokens, logs, traffic and storage."""

    read_units: float
    write_units: float
    gb_seconds: float
    invocations: int
    api_requests: int = 0
    queue_requests: int = 0
    transitions: int = 0
    bucket_puts: int = 0
    bucket_gets: int = 0
    schedules: int = 0  # invocations by EventBridge Scheduler

    def dollars(self, times: int) -> Mapping[str, Decimal]:
        """Return the cost by service, multiplied."""
        units = Decimal(str(self.read_units)) * READ_UNIT + Decimal(str(self.write_units)) * WRITE_UNIT
        each = {
            "DynamoDB": units,
            "Step Functions": self.transitions * TRANSITION,
            "Lambda": self.invocations * INVOCATION + Decimal(str(self.gb_seconds)) * GB_SECOND,
            "SQS": self.queue_requests * QUEUE_REQUEST,
            "EventBridge": self.schedules * SCHEDULE,
            "API Gateway": self.api_requests * API_REQUEST,
            "S3": self.bucket_puts * BUCKET_PUT + self.bucket_gets * BUCKET_GET,
        }
        return {service: times * dollars for service, dollars in each.items()}
