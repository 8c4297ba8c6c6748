"""The stateful stack: the table, the bucket and the queue. It is retained and protected, and changes rarely."""

from aws_cdk import CfnOutput, Fn, Stack
from aws_cdk import Environment as Target
from constructs import Construct

from infra.constructs.bucket import Bucket
from infra.constructs.queue import JobQueue
from infra.constructs.table import Table
from infra.environments import Environment
from infra.stored import Stored


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
        jobs = JobQueue(self, "Jobs")
        jobs.announce_uploads(bucket)
        self.stored = Stored(
            table=self._export("TableName", table.table_name, environment),
            bucket=self._export("BucketName", bucket.bucket_name, environment),
            queue_url=self._export("QueueUrl", jobs.resource.queue_url, environment),
            queue_arn=self._export("QueueArn", jobs.resource.queue_arn, environment),
            failed_jobs_arn=self._export("FailedJobsArn", jobs.failed.queue_arn, environment),
        )

    def _export(self, name: str, value: str, environment: Environment) -> str:
        """Exported under a name of its own, so that no change of an importing stack can touch this one."""
        export_name = f"spass-{environment.name}-{name}"
        CfnOutput(self, name, value=value, export_name=export_name)
        return Fn.import_value(export_name)
