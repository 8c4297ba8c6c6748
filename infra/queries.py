"""The queries of CloudWatch Logs Insights that a deployment saves, as plain data: the runbooks of ``docs/operations.md`` name
them, and a test reads real lines with them. This module imports nothing of the CDK and nothing of the runtime.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Logs(StrEnum):
    """The log groups of a query. One query that names its groups may read 50 of them, so a query of all functions names their
    prefix in its text. CloudWatch accepts that from its API and its command line, but not from its console."""

    ACCESS = "access"  # API Gateway's access log
    CALLING = "calling"  # of the functions that call models or tools
    WRITING = "writing"  # of the functions that write to the table, as everything does that counts against a limit
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Query:
    """A query: the commands of ``lines`` follow each other. ``name`` comes after the environment's folder."""

    name: str
    logs: Logs
    lines: tuple[str, ...]

    def text(self, prefix: str) -> str:
        """Return the query. ``prefix`` begins the names of all log groups of the deployment."""
        source = (f"SOURCE logGroups(namePrefix: ['{prefix}'])",) if self.logs is Logs.ALL else ()
        return "\n| ".join((*source, *self.lines))


REQUEST: Final = "REQUEST_ID"
"""What an operator replaces by the ``SPASS-Request-Id`` of an answer."""

_SURFACE: Final = r"parse route /^\/(?<surface>a1\/[^\/]+|[^\/]*)/"

QUERIES: Final = (
    Query(
        "slowest-routes",
        Logs.ACCESS,
        (
            "stats count(*) as requests, pct(latency_ms, 50) as median_ms, pct(latency_ms, 99) as p99_ms by method, route",
            "sort p99_ms desc",
            "limit 20",
        ),
    ),
    Query(
        "cost-by-tenant",
        Logs.CALLING,
        (
            'filter event = "inference_end"',
            "stats sum(cost_usd) as usd, sum(prompt_tokens) as prompt, sum(completion_tokens) as completion by tenant, model",
            "sort usd desc",
        ),
    ),
    Query(
        "failed-starts",
        Logs.ALL,
        (
            # Lambda reports a start that wrote no line of its own, such as one that ran out of time.
            'filter event = "start_failed" or (type = "platform.initReport" and record.status != "success")',
            "fields @timestamp, @log, exception, errno_name, message, problems.0.problem, where, record.errorType",
            "sort @timestamp desc",
            "limit 100",
        ),
    ),
    Query(
        "refusals-by-bound",
        Logs.WRITING,
        ("filter ispresent(limit)", "stats count(*) as refused by tenant, limit, error, bin(1h)", "sort refused desc"),
    ),
    Query(
        "one-request",
        Logs.ALL,
        (
            f'filter request_id = "{REQUEST}" or outer_request_id = "{REQUEST}" or gateway_request_id = "{REQUEST}"',
            "fields @timestamp, @log, event, route, status, error, limit, model, tool, exception, where",
            "sort @timestamp asc",
        ),
    ),
)

LATENCY_BY_SURFACE: Final = (
    _SURFACE,
    "stats count(*) as requests, pct(latency_ms, 50) as median_ms, pct(latency_ms, 99) as p99_ms by surface",
    "sort p99_ms desc",
)
FIRST_BYTE: Final = (
    'filter ispresent(first_byte_ms) and first_byte_ms != "-"',
    "stats pct(first_byte_ms, 50) as median_ms, pct(first_byte_ms, 99) as p99_ms by bin(5m)",
)
"""Queries of the dashboard on the access log."""
