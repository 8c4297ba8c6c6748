"""The stateful stack: the table and the bucket. It is retained and protected, and changes rarely."""

from dataclasses import dataclass

from aws_cdk import CfnOutput, Fn, Stack
from aws_cdk import Environment as Target
from constructs import Construct

from infra.constructs.bucket import Bucket
from infra.constructs.table import Table
from infra.environments import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The names of the table and the bucket, as another stack of the environment imports them."""

    table: str
    bucket: str


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
        bucket = Bucket(self, "Objects", recovery_days=environment.recovery_days).resource
        self.stored = Stored(
            table=self._export("TableName", table.table_name, environment),
            bucket=self._export("BucketName", bucket.bucket_name, environment),
        )

    def _export(self, name: str, value: str, environment: Environment) -> str:
        """Exported under a name of its own, so that no change of an importing stack can touch this one."""
        export_name = f"spass-{environment.name}-{name}"
        CfnOutput(self, name, value=value, export_name=export_name)
        return Fn.import_value(export_name)
