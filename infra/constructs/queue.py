"""A work queue with its dead-letter queue."""

from typing import Final, cast

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.constructs.bucket import UPLOADS

# A dead letter's retention counts from when the message was first sent. SQS keeps messages for at most 14 days.
_RETENTION: Final = Duration.days(4)
_FAILED_RETENTION: Final = Duration.days(14)


class WorkQueue(Construct):
    """Messages for a worker. After ``receives`` failed attempts a message moves to the queue ``failed``.

    ``invisible`` is the visibility timeout. It must be longer than a worker can run, so that two workers never have one message.
    The event source receives no more messages than workers may run, so no received message waits for a worker. Both queues are
    encrypted (with ``key``, or with SQS's own), require TLS and outlive their stack: a message may be the only record of work
    that a tenant waits for.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, invisible: Duration, receives: int, key: kms.IKey | None = None
    ) -> None:
        super().__init__(scope, construct_id)
        encryption = sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED
        self.failed = sqs.Queue(
            self,
            "Failed",
            encryption=encryption,
            encryption_master_key=key,
            enforce_ssl=True,
            retention_period=_FAILED_RETENTION,
            removal_policy=RemovalPolicy.RETAIN,
        )
        self.resource = sqs.Queue(
            self,
            "Queue",
            encryption=encryption,
            encryption_master_key=key,
            enforce_ssl=True,
            retention_period=_RETENTION,
            removal_policy=RemovalPolicy.RETAIN,
            visibility_timeout=invisible,
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.failed, max_receive_count=receives),
        )

    def announce_uploads(self, bucket: s3.Bucket, restored: str | None) -> None:
        """Make the bucket send a message for every object that is created under ``uploads/``.

        S3 checks this permission when it creates the bucket, so the policy must exist before and cannot name the bucket. It
        allows the buckets of this account whose names begin with this stack's name, as CloudFormation generates them,
        and the bucket ``restored``, to which the operator gives the same notification (docs/operations.md).
        """
        stack = Stack.of(self)
        names = [f"{stack.stack_name.lower()}-*", *([restored] if restored else [])]
        buckets = [f"arn:{stack.partition}:s3:::{name}" for name in names]
        self.resource.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal("s3.amazonaws.com")],
                actions=["sqs:SendMessage"],
                resources=[self.resource.queue_arn],
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {"aws:SourceArn": buckets if restored else buckets[0]},
                },
            )
        )
        resource = cast(s3.CfnBucket, bucket.node.default_child)
        # Set the CloudFormation property: `Bucket.add_event_notification` would add a Lambda that sets it later.
        resource.notification_configuration = s3.CfnBucket.NotificationConfigurationProperty(
            queue_configurations=[
                s3.CfnBucket.QueueConfigurationProperty(
                    event="s3:ObjectCreated:*",
                    queue=self.resource.queue_arn,
                    filter=s3.CfnBucket.NotificationFilterProperty(
                        s3_key=s3.CfnBucket.S3KeyFilterProperty(
                            rules=[s3.CfnBucket.FilterRuleProperty(name="prefix", value=UPLOADS)]
                        )
                    ),
                )
            ]
        )
        resource.node.add_dependency(self.resource.node.find_child("Policy"))
