"""The stateful stack: the table, the bucket and the queues. It is retained and protected, and changes rarely."""

from typing import Final

from aws_cdk import CfnOutput, Duration, Fn, Stack
from aws_cdk import Environment as Target
from constructs import Construct

from infra.constructs.bucket import Bucket
from infra.constructs.queue import WorkQueue
from infra.constructs.table import Table
from infra.environments import Environment
from infra.stateful_resources import StatefulQueue, StatefulResources

# A minute after the end of the 15 that a worker of a file has.
_JOB_INVISIBLE: Final = Duration.minutes(16)
_JOB_RECEIVES: Final = 5
# Somebody waits, and its worker lives for less than a minute. For twenty of them it is tried again.
_COMPACTION_INVISIBLE: Final = Duration.minutes(1)
_COMPACTION_RECEIVES: Final = 20


class DataStack(Stack):
    """Everything that must outlive a deployment. ``stored`` tells other stacks where."""

    def __init__(self, scope: Construct, construct_id: str, *, environment: Environment) -> None:
        super().__init__(
            scope,
            construct_id,
            env=Target(account=environment.account, region=environment.region),
            description=f"Spass {environment.name}: what is stored",
            termination_protection=True,
        )
        table = Table(self, "Items", recovery_days=environment.recovery_days).resource
        bucket = Bucket(
            self, "Objects", recovery_days=environment.recovery_days, archive_days=environment.audit_archive_days
        ).resource
        jobs = WorkQueue(self, "Jobs", invisible=_JOB_INVISIBLE, receives=_JOB_RECEIVES)
        compactions = WorkQueue(self, "Compactions", invisible=_COMPACTION_INVISIBLE, receives=_COMPACTION_RECEIVES)
        jobs.announce_uploads(bucket)
        self.stored = StatefulResources(
            table=self._export("TableName", table.table_name, environment),
            bucket=self._export("BucketName", bucket.bucket_name, environment),
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
        )

    def _export(self, name: str, value: str, environment: Environment) -> str:
        """Exported under a name of its own, so that no change of an importing stack can touch this one."""
        export_name = f"spass-{environment.name}-{name}"
        CfnOutput(self, name, value=value, export_name=export_name)
        return Fn.import_value(export_name)
