"""The key of KMS that an environment may have for all that it stores, and the permissions to use it."""

from collections.abc import Collection

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct


class StorageKey(Construct):
    """A key that rotates every year and outlives its stack: without it, nothing that it encrypted can be read.

    Identities of the account use it as their own policies allow. Its policy allows only the services that have no identity here:
    S3 announces uploads to a queue, and CloudWatch publishes alarms to the topic.
    """

    def __init__(self, scope: Construct, construct_id: str, *, description: str) -> None:
        super().__init__(scope, construct_id)
        self.resource = kms.Key(
            self, "Key", description=description, enable_key_rotation=True, removal_policy=RemovalPolicy.RETAIN
        )
        self.resource.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal("s3.amazonaws.com"), iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["kms:Decrypt", "kms:GenerateDataKey"],
                resources=["*"],
                conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
            )
        )


def key_statements(
    stack: Stack, key: str | None, *, decrypt: Collection[str] = (), encrypt: Collection[str] = ()
) -> list[iam.PolicyStatement]:
    """Return the permissions to use the key with this ARN through services, e.g. ``s3``, and through nothing else.

    ``decrypt``: the services that decrypt for the caller. ``encrypt``: those that ask for a new data key for it. DynamoDB has the
    data key of a table and decrypts it for each caller, also before a write.
    """
    by_action = {"kms:Decrypt": decrypt, "kms:GenerateDataKey": encrypt}
    return [
        iam.PolicyStatement(
            actions=[action],
            resources=[key],
            conditions={
                "StringEquals": {
                    "kms:ViaService": [f"{service}.{stack.region}.{stack.url_suffix}" for service in sorted(services)]
                }
            },
        )
        for action, services in by_action.items()
        if key and services
    ]
