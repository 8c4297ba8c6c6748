"""The one table: every item of every tenant."""

from aws_cdk import RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from constructs import Construct


class Table(Construct):
    """A table keyed ``pk``, ``sk`` that bills per request, expires items by ``ttl`` and outlives its stack.

    ``key`` encrypts it; None means AWS's own key for tables.
    """

    def __init__(self, scope: Construct, construct_id: str, *, recovery_days: int, key: kms.IKey | None = None) -> None:
        super().__init__(scope, construct_id)
        self.resource = dynamodb.Table(
            self,
            "Table",
            partition_key=dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name="sk", type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED if key else dynamodb.TableEncryption.AWS_MANAGED,
            encryption_key=key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True, recovery_period_in_days=recovery_days
            ),
            time_to_live_attribute="ttl",
            deletion_protection=True,
            removal_policy=RemovalPolicy.RETAIN,
        )
