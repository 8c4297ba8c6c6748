"""Alarms with their topic, saved queries and a dashboard. AWS bills each metric of an alarm by the month, so an environment
has to enable them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aws_cdk import Duration, Stack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.constructs.archive import AuditArchive
from infra.constructs.dashboard import Dashboard, SavedQueries
from infra.queries import Logs

_PERIOD: Final = Duration.minutes(5)
# A failed job or run is retried after 16 minutes. One that is older than two attempts is stuck.
_OLD: Final = Duration.minutes(45)
# A client waits for the compaction, and starting one takes a second.
_UNSTARTED: Final = Duration.minutes(5)
# Firehose writes every five minutes. It retries a failed write for a day, then drops the records.
_LATE: Final = Duration.hours(1)
# A stream ends after 14 minutes by the gateway's own deadline, and Lambda ends a function after 15.
_OVERDUE: Final = Duration.seconds(870)
_RUNBOOKS: Final = "docs/operations.md"

NOT_STORED: Final = "audit_not_stored"
"""The metric of audit records that were lost (``spass/metering/audit.py``)."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A work queue and its dead-letter queue."""

    queue: sqs.IQueue
    failed: sqs.IQueue


@dataclass(frozen=True, slots=True)
class _Alarm:
    """An alarm: one metric that reaches ``threshold`` in two of three periods, or in one if one event is enough (``once``).
    ``meaning`` is a sentence. The runbook is the section of the page of operations whose title is ``name``."""

    name: str
    metric: cloudwatch.IMetric
    threshold: float
    meaning: str
    once: bool = False


class Monitoring(Construct):
    """A topic and the alarms that notify it, with the saved queries that their runbooks name, and a dashboard.

    ``groups`` are the names of the log groups that the queries read. ``namespace`` has the gateway's own metrics; None if it
    writes none. ``copies`` is the vault of the daily backups that are copied to another region, if there is one.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment: str,
        stage: apigateway.Stage,
        access: logs.ILogGroup,
        groups: Mapping[Logs, Sequence[str]],
        table: dynamodb.ITable,
        jobs: Watched,
        compactions: Watched,
        runs: Watched,
        schedule_group: str,
        compaction: sfn.IStateMachine,
        archive: AuditArchive | None,
        namespace: str | None,
        copies: str | None,
        email: str | None,
        key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.topic = self._topic(key)
        if email is not None:
            self.topic.add_subscription(subscriptions.EmailSubscription(email))
        queues = {"jobs": jobs, "compactions": compactions, "runs": runs}
        alarms = [*_of_requests(stage), *_of_queues(queues), *_of_compactions(compaction), *_of_table(table)]
        alarms.append(_of_ticks(schedule_group))
        if namespace is not None:
            alarms.append(_of_audit(namespace))
        if archive is not None:
            alarms.append(_of_archive(archive))
        if copies is not None:
            alarms.extend(_of_copies(copies))
        for alarm in alarms:
            self._add(alarm)
        SavedQueries(self, "Queries", folder=f"spass-{environment}", groups={Logs.ACCESS: [access.log_group_name], **groups})
        Dashboard(
            self,
            "Dashboard",
            stage=stage,
            access=access,
            queues={name: watched.queue for name, watched in queues.items()},
            failed={name: watched.failed for name, watched in queues.items()},
            namespace=namespace,
        )

    def _topic(self, key: kms.IKey | None) -> sns.Topic:
        """Return a topic that requires TLS. ``enforce_ssl`` replaces SNS's default policy, so alarms need a statement here."""
        topic = sns.Topic(self, "Topic", enforce_ssl=True, master_key=key)
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
            )
        )
        return topic

    def _add(self, alarm: _Alarm) -> None:
        cloudwatch.Alarm(
            self,
            alarm.name,
            alarm_description=f"{alarm.meaning} Runbook: {_RUNBOOKS}#{alarm.name.lower()}",
            metric=alarm.metric,
            threshold=alarm.threshold,
            evaluation_periods=1 if alarm.once else 3,
            datapoints_to_alarm=1 if alarm.once else 2,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        ).add_alarm_action(actions.SnsAction(self.topic))


def _of_requests(stage: apigateway.Stage) -> list[_Alarm]:
    """Lambda's metrics have no dimension: one metric for all functions of the account and region, instead of two for each. One
    error is enough, because a sweep that takes too long fails once an hour."""
    errors, latency = (
        stage.metric_server_error(period=_PERIOD, statistic="Sum"),
        stage.metric_latency(period=_PERIOD, statistic="p99"),
    )
    return [
        _Alarm("ServerErrors", errors, 5, "The API answers with errors of the server (5xx)."),
        _Alarm(
            "SlowAnswers",
            latency,
            _OVERDUE.to_milliseconds(),
            "One answer in a hundred takes longer than every deadline of the gateway.",
        ),
        _Alarm("FunctionErrors", _lambda("Errors"), 1, "A function of this account failed or ran out of time.", once=True),
        _Alarm("FunctionThrottles", _lambda("Throttles"), 5, "Functions of this account are refused for lack of concurrency."),
    ]


def _of_queues(queues: Mapping[str, Watched]) -> list[_Alarm]:
    jobs, compactions, runs = (queues[name] for name in ("jobs", "compactions", "runs"))
    late = _OLD.to_seconds()
    return [
        _Alarm("OldestJob", _age(jobs.queue), late, "A file or merge waits on its queue for longer than two attempts take."),
        _Alarm("OldestCompaction", _age(compactions.queue), _UNSTARTED.to_seconds(), "A requested compaction does not start."),
        _Alarm(
            "OldestRun", _age(runs.queue), late, "A run of a managed agent waits on its queue for longer than two attempts take."
        ),
        _Alarm("FailedJobs", _messages(jobs.failed), 1, "A file or merge has failed in all its attempts.", once=True),
        _Alarm(
            "UnstartedCompactions", _messages(compactions.failed), 1, "A requested compaction could not be started.", once=True
        ),
        _Alarm("FailedRuns", _messages(runs.failed), 1, "A run of a managed agent has failed in all its attempts.", once=True),
    ]


def _of_compactions(machine: sfn.IStateMachine) -> list[_Alarm]:
    failed, late = (metric(period=_PERIOD, statistic="Sum") for metric in (machine.metric_failed, machine.metric_timed_out))
    return [
        _Alarm("FailedCompactions", failed, 1, "A compaction has failed after all retries of its steps.", once=True),
        _Alarm("TimedOutCompactions", late, 1, "A compaction has not ended within its hour.", once=True),
    ]


def _of_table(table: dynamodb.ITable) -> list[_Alarm]:
    return [
        _Alarm(
            f"Table{verb}Throttles",
            table.metric(f"{verb}ThrottleEvents", period=_PERIOD, statistic="Sum"),
            10,
            f"The table refuses {verb.lower()}s because a partition gets too many.",
        )
        for verb in ("Read", "Write")
    ]


def _of_ticks(group: str) -> _Alarm:
    """Watch the ticks that the scheduler could not send to the queue of runs within an hour.

    (https://docs.aws.amazon.com/scheduler/latest/UserGuide/monitoring-cloudwatch.html)
    """
    dropped = cloudwatch.Metric(
        namespace="AWS/Scheduler",
        metric_name="InvocationDroppedCount",
        dimensions_map={"ScheduleGroup": group},
        period=_PERIOD,
        statistic="Sum",
    )
    return _Alarm("DroppedTicks", dropped, 1, "A tick of a schedule was lost on its way to the queue of runs.", once=True)


def _of_audit(namespace: str) -> _Alarm:
    lost = cloudwatch.Metric(namespace=namespace, metric_name=NOT_STORED, period=_PERIOD, statistic="Sum")
    return _Alarm(
        "AuditNotStored", lost, 1, "A paid call is neither in the audit nor on the queue, but only in the log.", once=True
    )


def _of_archive(archive: AuditArchive) -> _Alarm:
    """Watch the age of the oldest record that is not yet written, in seconds.

    (https://docs.aws.amazon.com/firehose/latest/dev/cloudwatch-metrics.html)
    """
    age = cloudwatch.Metric(
        namespace="AWS/Firehose",
        metric_name="DeliveryToS3.DataFreshness",
        dimensions_map={"DeliveryStreamName": archive.name},
        period=_PERIOD,
        statistic="Maximum",
    )
    return _Alarm("ArchiveLate", age, _LATE.to_seconds(), "The archive of the audit has not been written for an hour.")


def _of_copies(vault: str) -> list[_Alarm]:
    """Watch the jobs of the vault, whose copies have one of the same name. A backup that fails is never copied.

    (https://docs.aws.amazon.com/aws-backup/latest/devguide/cloudwatch.html)
    """
    backups, copies = (
        cloudwatch.Metric(
            namespace="AWS/Backup",
            metric_name=f"NumberOf{kind}JobsFailed",
            dimensions_map={"BackupVaultName": vault},
            period=_PERIOD,
            statistic="Sum",
        )
        for kind in ("Backup", "Copy")
    )
    return [
        _Alarm("FailedBackups", backups, 1, "A daily backup of the table or the bucket has failed.", once=True),
        _Alarm("FailedCopies", copies, 1, "A daily backup was not copied to the other region.", once=True),
    ]


def _lambda(name: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(namespace="AWS/Lambda", metric_name=name, period=_PERIOD, statistic="Sum")


def _messages(queue: sqs.IQueue) -> cloudwatch.Metric:
    return queue.metric_approximate_number_of_messages_visible(period=_PERIOD, statistic="Maximum")


def _age(queue: sqs.IQueue) -> cloudwatch.Metric:
    """Return the metric of the oldest message's age, in seconds."""
    return queue.metric_approximate_age_of_oldest_message(period=_PERIOD, statistic="Maximum")
