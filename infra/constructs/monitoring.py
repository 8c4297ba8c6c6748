"""Alarms. Each metric watched bills by the month, so an environment turns them on or leaves them out."""

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
# A job that failed is tried again after 16 minutes; one that is older than two tries waits for something.
_OLD: Final = Duration.minutes(45)
# A client waits for the start of a compaction, which takes a second.
_UNSTARTED: Final = Duration.minutes(5)
# The archive writes every five minutes. What it cannot write it tries again for a day, and then it is lost.
_LATE: Final = Duration.hours(1)


@dataclass(frozen=True, slots=True)
class Watched:
    """A queue of work, and that of what failed."""

    queue: sqs.IQueue
    failed: sqs.IQueue


class Monitoring(Construct):
    """A topic, and alarms that tell it of server errors, failing or throttled functions, a throttled table, of jobs and
    compactions that failed or are not taken up, and of an archive that cannot be written.

    ``rare`` are the functions that run too seldom to fail three times in five minutes: their first failure counts.
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
            troubles = [
                function.metric_errors(period=_PERIOD, statistic="Sum"),
                function.metric_throttles(period=_PERIOD, statistic="Sum"),
            ]
            self._alarm(f"Function-{name}", _sum(troubles), threshold=1 if name in rare else 3)
        self._alarm("FailedJobs", _messages(jobs.failed), threshold=1)
        self._alarm("OldestJob", _age(jobs.queue), threshold=_OLD.to_seconds())
        self._watch_compactions(compactions, compaction)
        if archive is not None:
            self._alarm("ArchiveLate", _age_of_oldest_record(archive), threshold=_LATE.to_seconds())

    def _watch_compactions(self, asked: Watched, machine: sfn.IStateMachine) -> None:
        self._alarm("UnstartedCompactions", _messages(asked.failed), threshold=1)
        self._alarm("OldestCompaction", _age(asked.queue), threshold=_UNSTARTED.to_seconds())
        ended = [
            machine.metric_failed(period=_PERIOD, statistic="Sum"),
            machine.metric_timed_out(period=_PERIOD, statistic="Sum"),
        ]
        self._alarm("FailedCompactions", _sum(ended), threshold=1)

    def _topic(self) -> sns.Topic:
        """Refuses what is not TLS. That alone would replace the policy SNS starts with, and no alarm could publish."""
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
    """Seconds for which the oldest message has waited to be done."""
    return queue.metric_approximate_age_of_oldest_message(period=_PERIOD, statistic="Maximum")


def _age_of_oldest_record(archive: AuditArchive) -> cloudwatch.Metric:
    """Seconds for which the oldest record has waited to be written.

    (https://docs.aws.amazon.com/firehose/latest/dev/cloudwatch-metrics.html)
    """
    return cloudwatch.Metric(
        namespace="AWS/Firehose",
        metric_name="DeliveryToS3.DataFreshness",
        dimensions_map={"DeliveryStreamName": archive.name},
        period=_PERIOD,
        statistic="Maximum",
    )
