"""Alarms. AWS bills each metric of an alarm by the month, so an environment has to enable them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aws_cdk import Duration, Stack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.constructs.archive import AuditArchive

_PERIOD: Final = Duration.minutes(5)
# A failed job or run is retried after 16 minutes. One that is older than two attempts is stuck.
_OLD: Final = Duration.minutes(45)
# A client waits for the compaction, and starting one takes a second.
_UNSTARTED: Final = Duration.minutes(5)
# Firehose writes every five minutes. It retries a failed write for a day, then drops the records.
_LATE: Final = Duration.hours(1)


@dataclass(frozen=True, slots=True)
class Watched:
    """A work queue and its dead-letter queue."""

    queue: sqs.IQueue
    failed: sqs.IQueue


class Monitoring(Construct):
    """A topic, and the alarms that notify it: server errors, failing or throttled functions, a throttled table, jobs,
    compactions and runs that failed or do not start, ticks of schedules that were lost, and an audit archive that cannot be
    written.

    ``rare`` are the functions that run too seldom to fail three times in five minutes. One failure raises their alarm.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        stage: apigateway.Stage,
        table: dynamodb.ITable,
        functions: Mapping[str, lambda_.IFunction],
        rare: Collection[str],
        jobs: Watched,
        compactions: Watched,
        runs: Watched,
        schedule_group: str,
        compaction: sfn.IStateMachine,
        archive: AuditArchive | None,
        email: str | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.topic = self._topic()
        if email is not None:
            self.topic.add_subscription(subscriptions.EmailSubscription(email))
        self._alarm("ServerErrors", stage.metric_server_error(period=_PERIOD, statistic="Sum"), threshold=5)
        throttles = [
            table.metric("ReadThrottleEvents", period=_PERIOD, statistic="Sum"),
            table.metric("WriteThrottleEvents", period=_PERIOD, statistic="Sum"),
        ]
        self._alarm("TableThrottles", _sum(throttles), threshold=10)
        for name, function in functions.items():
            failures = [
                function.metric_errors(period=_PERIOD, statistic="Sum"),
                function.metric_throttles(period=_PERIOD, statistic="Sum"),
            ]
            self._alarm(f"Function-{name}", _sum(failures), threshold=1 if name in rare else 3)
        self._alarm("FailedJobs", _messages(jobs.failed), threshold=1)
        self._alarm("OldestJob", _age(jobs.queue), threshold=_OLD.to_seconds())
        self._alarm("FailedRuns", _messages(runs.failed), threshold=1)
        self._alarm("OldestRun", _age(runs.queue), threshold=_OLD.to_seconds())
        self._alarm("DroppedTicks", _dropped_ticks(schedule_group), threshold=1)
        self._watch_compactions(compactions, compaction)
        if archive is not None:
            self._alarm("ArchiveLate", _age_of_oldest_record(archive), threshold=_LATE.to_seconds())

    def _watch_compactions(self, queues: Watched, machine: sfn.IStateMachine) -> None:
        self._alarm("UnstartedCompactions", _messages(queues.failed), threshold=1)
        self._alarm("OldestCompaction", _age(queues.queue), threshold=_UNSTARTED.to_seconds())
        failures = [
            machine.metric_failed(period=_PERIOD, statistic="Sum"),
            machine.metric_timed_out(period=_PERIOD, statistic="Sum"),
        ]
        self._alarm("FailedCompactions", _sum(failures), threshold=1)

    def _topic(self) -> sns.Topic:
        """Return a topic that requires TLS. ``enforce_ssl`` replaces SNS's default policy, so alarms need a statement here."""
        topic = sns.Topic(self, "Topic", enforce_ssl=True)
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
            )
        )
        return topic

    def _alarm(self, construct_id: str, metric: cloudwatch.IMetric, *, threshold: float) -> None:
        alarm = cloudwatch.Alarm(
            self,
            construct_id,
            metric=metric,
            threshold=threshold,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        alarm.add_alarm_action(actions.SnsAction(self.topic))


def _sum(metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.MathExpression:
    using = {f"m{number}": metric for number, metric in enumerate(metrics)}
    return cloudwatch.MathExpression(
        expression=" + ".join(f"FILL({name}, 0)" for name in using), using_metrics=using, period=_PERIOD
    )


def _messages(queue: sqs.IQueue) -> cloudwatch.Metric:
    return queue.metric_approximate_number_of_messages_visible(period=_PERIOD, statistic="Maximum")


def _age(queue: sqs.IQueue) -> cloudwatch.Metric:
    """Return the metric of the oldest message's age, in seconds."""
    return queue.metric_approximate_age_of_oldest_message(period=_PERIOD, statistic="Maximum")


def _dropped_ticks(group: str) -> cloudwatch.Metric:
    """Return the metric of the ticks that the scheduler could not send to the queue of runs within an hour.

    (https://docs.aws.amazon.com/scheduler/latest/UserGuide/monitoring-cloudwatch.html)
    """
    return cloudwatch.Metric(
        namespace="AWS/Scheduler",
        metric_name="InvocationDroppedCount",
        dimensions_map={"ScheduleGroup": group},
        period=_PERIOD,
        statistic="Sum",
    )


def _age_of_oldest_record(archive: AuditArchive) -> cloudwatch.Metric:
    """Return the metric of the age of the oldest record that is not yet written, in seconds.

    (https://docs.aws.amazon.com/firehose/latest/dev/cloudwatch-metrics.html)
    """
    return cloudwatch.Metric(
        namespace="AWS/Firehose",
        metric_name="DeliveryToS3.DataFreshness",
        dimensions_map={"DeliveryStreamName": archive.name},
        period=_PERIOD,
        statistic="Maximum",
    )
