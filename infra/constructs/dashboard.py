"""The dashboard of a deployment and its saved queries. AWS grants three dashboards of at most 50 metrics to an account; a further
one costs 3 USD a month, so only an environment with alarms has one."""

from collections.abc import Mapping, Sequence
from typing import Final

from aws_cdk import Duration, Stack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.queries import FIRST_BYTE, LATENCY_BY_SURFACE, QUERIES, Logs, Query

_PERIOD: Final = Duration.minutes(5)
_HALF, _HEIGHT = 12, 6  # a row has 24 columns


class SavedQueries(Construct):
    """The queries of ``infra/queries.py``. They cost nothing until someone runs one."""

    def __init__(self, scope: Construct, construct_id: str, *, folder: str, groups: Mapping[Logs, Sequence[str]]) -> None:
        super().__init__(scope, construct_id)
        prefix = f"{Stack.of(self).stack_name}-"
        for query in QUERIES:
            self._save(query, folder, prefix, groups.get(query.logs))

    def _save(self, query: Query, folder: str, prefix: str, groups: Sequence[str] | None) -> None:
        logs.CfnQueryDefinition(
            self, query.name, name=f"{folder}/{query.name}", query_string=query.text(prefix), log_group_names=groups
        )


class Dashboard(Construct):
    """Requests, errors, latency by surface, the first byte of streams, cost per hour, queues, and the concurrency of the account
    beside its limit."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        stage: apigateway.Stage,
        access: logs.ILogGroup,
        queues: Mapping[str, sqs.IQueue],
        failed: Mapping[str, sqs.IQueue],
        namespace: str | None,
    ) -> None:
        super().__init__(scope, construct_id)
        group = [access.log_group_name]
        rows: list[list[cloudwatch.IWidget]] = [
            [
                _graph("Requests", [stage.metric_count(period=_PERIOD, statistic="Sum", label="requests")]),
                _graph(
                    "Errors",
                    [
                        stage.metric_server_error(period=_PERIOD, statistic="Sum", label="5xx"),
                        stage.metric_client_error(period=_PERIOD, statistic="Sum", label="4xx"),
                    ],
                ),
            ],
            [
                _table("Latency by surface", group, LATENCY_BY_SURFACE),
                _table("First byte of streams", group, FIRST_BYTE, cloudwatch.LogQueryVisualizationType.LINE),
            ],
            [_graph("Age of the oldest message, seconds", _ages(queues)), _graph("Dead letters", _messages(failed))],
            [_graph("Functions at once", _concurrency()), *([_graph("USD per hour", [_cost(namespace)])] if namespace else [])],
        ]
        cloudwatch.Dashboard(self, "Dashboard", widgets=rows)


def _graph(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=metrics, width=_HALF, height=_HEIGHT)


def _table(
    title: str,
    groups: Sequence[str],
    lines: Sequence[str],
    view: cloudwatch.LogQueryVisualizationType = cloudwatch.LogQueryVisualizationType.TABLE,
) -> cloudwatch.LogQueryWidget:
    return cloudwatch.LogQueryWidget(
        title=title, log_group_names=groups, query_lines=list(lines), view=view, width=_HALF, height=_HEIGHT
    )


def _ages(queues: Mapping[str, sqs.IQueue]) -> list[cloudwatch.IMetric]:
    return [
        queue.metric_approximate_age_of_oldest_message(period=_PERIOD, statistic="Maximum", label=name)
        for name, queue in queues.items()
    ]


def _messages(queues: Mapping[str, sqs.IQueue]) -> list[cloudwatch.IMetric]:
    return [
        queue.metric_approximate_number_of_messages_visible(period=_PERIOD, statistic="Maximum", label=name)
        for name, queue in queues.items()
    ]


def _concurrency() -> list[cloudwatch.IMetric]:
    """Return the functions that run at once in the account and region, and the account's limit.

    (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch-Quotas-Visualize-Alarms.html)
    """
    in_use = cloudwatch.Metric(
        namespace="AWS/Usage",
        metric_name="ResourceCount",
        dimensions_map={"Service": "Lambda", "Type": "Resource", "Resource": "ConcurrentExecutions", "Class": "None"},
        period=_PERIOD,
        statistic="Maximum",
        label="in use",
    )
    limit = cloudwatch.MathExpression(
        expression="SERVICE_QUOTA(used)", using_metrics={"used": in_use}, period=_PERIOD, label="limit of the account"
    )
    return [in_use, limit]


def _cost(namespace: str) -> cloudwatch.MathExpression:
    """Return the cost of model calls by model."""
    hour = Duration.hours(1)
    search = f"""SEARCH('{{{namespace},model}} MetricName="cost_usd"', 'Sum', {hour.to_seconds():.0f})"""
    return cloudwatch.MathExpression(expression=search, using_metrics={}, period=hour, label="")
