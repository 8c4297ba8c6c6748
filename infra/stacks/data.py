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
        table = Table(self, "Items", recovery_days=environment.recovery_days).resource
        bucket = Bucket(
            self, "Objects", recovery_days=environment.recovery_days, archive_days=environment.audit_archive_days
        ).resource
        jobs = WorkQueue(self, "Jobs", invisible=_JOB_INVISIBLE, receives=_JOB_RECEIVES)
        compactions = WorkQueue(self, "Compactions", invisible=_COMPACTION_INVISIBLE, receives=_COMPACTION_RECEIVES)
        runs = WorkQueue(self, "Runs", invisible=_RUN_INVISIBLE, receives=_RUN_RECEIVES)
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
            runs=StatefulQueue(
                url=self._export("RunQueueUrl", runs.resource.queue_url, environment),
                arn=self._export("RunQueueArn", runs.resource.queue_arn, environment),
                failed_arn=self._export("FailedRunsArn", runs.failed.queue_arn, environment),
            ),
        )

    def _export(self, name: str, value: str, environment: Environment) -> str:
        """Export the value under a fixed name and return the import, so that a change of an importing stack never changes this
        stack."""
        export_name = f"spass-{environment.name}-{name}"
        CfnOutput(self, name, value=value, export_name=export_name)
        return Fn.import_value(export_name)
