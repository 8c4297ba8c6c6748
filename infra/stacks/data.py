"""The stateful stack: the table, the bucket and the queues. It is retained and protected, and changes rarely."""

from typing import Final, cast

from aws_cdk import CfnOutput, Duration, Fn, Stack
from aws_cdk import Environment as Target
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.constructs.bucket import Bucket
from infra.constructs.copies import DailyCopies
from infra.constructs.key import StorageKey
from infra.constructs.queue import WorkQueue
from infra.constructs.table import Table
from infra.environments import Environment
from infra.stateful_resources import StatefulQueue, StatefulResources

# One minute longer than the 15 that a job's worker may run.
_JOB_INVISIBLE: Final = Duration.minutes(16)
_JOB_RECEIVES: Final = 5
# A client waits, and the worker runs for less than a minute. SQS retries for about twenty minutes.
_COMPACTION_INVISIBLE: Final = Duration.minutes(1)
_COMPACTION_RECEIVES: Final = 20
# One minute longer than the 15 that a run may take. A run that fails three times has failed.
_RUN_INVISIBLE: Final = Duration.minutes(16)
_RUN_RECEIVES: Final = 3


class DataStack(Stack):
    """All resources that must outlive a deployment. ``stored`` names them for other stacks."""

    def __init__(self, scope: Construct, construct_id: str, *, environment: Environment) -> None:
        super().__init__(
            scope,
            construct_id,
            env=Target(account=environment.account, region=environment.region),
            description=f"Spass {environment.name}: what is stored",
            termination_protection=True,
        )
        key = self._key(environment)
        table = Table(self, "Items", recovery_days=environment.recovery_days, key=key).resource
        bucket = Bucket(
            self, "Objects", recovery_days=environment.recovery_days, archive_days=environment.audit_archive_days, key=key
        ).resource
        jobs = WorkQueue(self, "Jobs", invisible=_JOB_INVISIBLE, receives=_JOB_RECEIVES, key=key)
        compactions = WorkQueue(self, "Compactions", invisible=_COMPACTION_INVISIBLE, receives=_COMPACTION_RECEIVES, key=key)
        runs = WorkQueue(self, "Runs", invisible=_RUN_INVISIBLE, receives=_RUN_RECEIVES, key=key)
        restored = environment.restored
        jobs.announce_uploads(bucket, restored.bucket if restored else None)
        own_table = self._export("TableName", table.table_name, environment)
        own_bucket = self._export("BucketName", bucket.bucket_name, environment)
        self.stored = StatefulResources(
            table=restored.table if restored else own_table,
            bucket=(restored.bucket if restored else None) or own_bucket,
            jobs=StatefulQueue(
                url=self._export("QueueUrl", jobs.resource.queue_url, environment),
                arn=self._export("QueueArn", jobs.resource.queue_arn, environment),
                failed_arn=self._export("FailedJobsArn", jobs.failed.queue_arn, environment),
            ),
            compactions=StatefulQueue(
                url=self._export("CompactionQueueUrl", compactions.resource.queue_url, environment),
                arn=self._export("CompactionQueueArn", compactions.resource.queue_arn, environment),
                failed_arn=self._export("FailedCompactionsArn", compactions.failed.queue_arn, environment),
            ),
            runs=StatefulQueue(
                url=self._export("RunQueueUrl", runs.resource.queue_url, environment),
                arn=self._export("RunQueueArn", runs.resource.queue_arn, environment),
                failed_arn=self._export("FailedRunsArn", runs.failed.queue_arn, environment),
            ),
            key=self._export("KeyArn", key.key_arn, environment) if key else None,
        )
        if environment.copy_to is not None:
            self._copy(environment, table, bucket, environment.copy_to)

    def _key(self, environment: Environment) -> kms.Key | None:
        if environment.key == "aws":
            return None
        return StorageKey(self, "Key", description=f"Spass {environment.name}: what is stored").resource

    def _copy(self, environment: Environment, table: dynamodb.Table, bucket: s3.Bucket, region: str) -> None:
        """Copy what the gateway uses to ``region`` every day: this stack's own table and bucket, or the restored ones."""
        restored = environment.restored
        tables = (
            self.format_arn(service="dynamodb", resource="table", resource_name=restored.table) if restored else table.table_arn
        )
        buckets = f"arn:{self.partition}:s3:::{restored.bucket}" if restored and restored.bucket else bucket.bucket_arn
        DailyCopies(
            self,
            "Copies",
            environment=environment.name,
            resources=[tables, buckets],
            copy_to=region,
            days=environment.recovery_days,
        )
        # AWS Backup learns of changes through EventBridge. It turns that on itself, and the next deployment would turn it off.
        cast(s3.CfnBucket, bucket.node.default_child).add_property_override(
            "NotificationConfiguration.EventBridgeConfiguration.EventBridgeEnabled", True
        )

    def _export(self, name: str, value: str, environment: Environment) -> str:
        """Export the value under a fixed name and return the import, so that a change of an importing stack never changes this
        stack."""
        export_name = f"spass-{environment.name}-{name}"
        CfnOutput(self, name, value=value, export_name=export_name)
        return Fn.import_value(export_name)
