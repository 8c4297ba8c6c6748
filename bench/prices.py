"""The AWS cost of a piece of work: list prices of eu-central-1, on demand, arm64, in US dollars, without free
tiers."""

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
