"""Dollars per million requests of each route: calls that ``bench.calls`` counted, times prices, with the memory of the route's
function. The tokens of models cost extra. So does work that a route only sends to a queue."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from infra.costs.prices import (
    API_REQUEST,
    ARCHIVED_GB,
    ARCHIVED_RECORD,
    GB_SECOND,
    INVOCATION,
    KEY_READ,
    LOG_GB,
    MACHINE_GB,
    STREAM_BYTES,
    TRAFFIC_GB,
    ResourceUsage,
)
from infra.routes import ROUTES, Route

SWEEP: Final = "the hourly sweep"
"""The label of a run of it among the counts."""

COUNTS: Final = Path(__file__).with_name("calls.json")
MILLION: Final = 1_000_000
MODEL_SECONDS: Final = 5
"""How long a model takes to answer. The function waits and is billed."""
OWN_SECONDS: Final = Decimal("0.05")
"""How long a warm function takes besides."""

_GB: Final = 1024**3
LAMBDA_LOG: Final = 650
"""Bytes of the two lines of JSON that Lambda logs for each invocation: its start and its report."""
_ACCESS_LOG: Final = 330
"""Bytes of the line of the access log."""
_FOLLOWER_READS: Final = 84
"""Read units of a minute of following a stream (``bench.stream``)."""
_CODE_SECONDS: Final = Decimal("0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one warm request used. ``models`` are calls of models, ``records`` all calls that the audit and its archive keep."""

    reads: float = 0  # capacity units
    writes: float = 0
    puts: int = 0
    gets: int = 0
    sends: int = 0  # messages to queues
    models: int = 0
    records: int = 0
    log_bytes: int = 0
    answer_bytes: int = 0


def write_counts(counts: Mapping[str, Counted]) -> None:
    """Write what ``bench.calls`` counted, without zeros, a line each."""
    lines = (
        f"{json.dumps(label)}: {json.dumps({name: value for name, value in asdict(one).items() if value})}"
        for label, one in counts.items()
    )
    COUNTS.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n", encoding="utf-8")


def read_counts() -> dict[str, Counted]:
    counts: dict[str, dict[str, int]] = json.loads(COUNTS.read_text(encoding="utf-8"))
    return {label: Counted(**one) for label, one in counts.items()}


@dataclass(frozen=True, slots=True)
class RouteCost:
    """Dollars per million requests. ``other`` is the bucket, queues, the archive and traffic."""

    label: str
    function: Decimal
    table: Decimal
    api: Decimal
    logs: Decimal
    other: Decimal

    @property
    def total(self) -> Decimal:
        return self.function + self.table + self.api + self.logs + self.other


def route_label(route: Route) -> str:
    return f"{route.method} {route.path}"


def route_costs(memory: Mapping[str, int]) -> Iterator[RouteCost]:
    """Yield the cost of each route, and of further rows of ``bench.calls`` below their routes. ``memory`` is in MiB, by the name
    of the function."""
    counts = read_counts()
    for route in ROUTES:
        label = route_label(route)
        for name, counted in counts.items():
            if name == label or name.startswith(f"{label} ("):
                yield _cost(name, counted, memory[route.function_name])


def _cost(label: str, counted: Counted, memory: int) -> RouteCost:
    seconds = OWN_SECONDS + MODEL_SECONDS * counted.models
    usage = ResourceUsage(
        read_units=counted.reads,
        write_units=counted.writes,
        gb_seconds=float(seconds * memory / 1024),
        invocations=1,
        api_requests=max(1, -(-counted.answer_bytes // STREAM_BYTES)),
        queue_requests=counted.sends,
        bucket_puts=counted.puts,
        bucket_gets=counted.gets,
    ).dollars(MILLION)
    logged = Decimal(counted.log_bytes + LAMBDA_LOG + _ACCESS_LOG) / _GB
    archived = Decimal(counted.records * ARCHIVED_RECORD) / _GB * ARCHIVED_GB
    sent = Decimal(counted.answer_bytes) / _GB * TRAFFIC_GB
    return RouteCost(
        label,
        function=usage["Lambda"],
        table=usage["DynamoDB"],
        api=usage["API Gateway"],
        logs=logged * LOG_GB * MILLION,
        other=usage["SQS"] + usage["S3"] + (archived + sent) * MILLION,
    )


def further_costs(memory: Mapping[str, int], machine: int) -> Iterator[tuple[str, Decimal]]:
    """Yield what is not a request, with its dollars per million. ``machine`` is the memory of the sandbox's function in MiB."""
    minute = ResourceUsage(_FOLLOWER_READS, 0, 60 * memory["streams-get"] / 1024, invocations=0).dollars(MILLION)
    yield "minutes of following a stream", sum(minute.values(), Decimal())
    yield "further 10 MB of a stream", (API_REQUEST + Decimal(STREAM_BYTES) / _GB * TRAFFIC_GB) * MILLION
    start = INVOCATION + _CODE_SECONDS * machine / 1024 * GB_SECOND
    yield "starts of code that models write", start * MILLION
    yield "reads of provider keys with the higher quota of the parameter store", KEY_READ * MILLION
    yield "virtual machines for it, each new for its user", MACHINE_GB * machine / 1024 * MILLION
