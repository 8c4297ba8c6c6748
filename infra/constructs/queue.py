"""A queue of work, and beside it the one of what failed too often."""

from typing import Final, cast

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.constructs.bucket import UPLOADS

# Dead letters keep their age, and 14 days is the longest there is.
_KEPT: Final = Duration.days(4)
_FAILED_KEPT: Final = Duration.days(14)


class WorkQueue(Construct):
    """Messages for a worker, and those that ``receives`` workers could not finish.

    Who takes a message has it to himself for as long as it is ``invisible``, which is longer than a worker can live: its event
    source starts no more workers than may run, so no message is taken that must wait for one. Both queues are encrypted, speak
    only TLS, and outlive their stack: a message may be the only trace of work that a tenant waits for.
    """

    def __init__(self, scope: Construct, construct_id: str, *, invisible: Duration, receives: int) -> None:
        super().__init__(scope, construct_id)
        self.failed = sqs.Queue(
            self,
            "Failed",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=_FAILED_KEPT,
            removal_policy=RemovalPolicy.RETAIN,
        )
        self.resource = sqs.Queue(
            self,
            "Queue",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=_KEPT,
            removal_policy=RemovalPolicy.RETAIN,
            visibility_timeout=invisible,
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.failed, max_receive_count=receives),
        )

    def announce_uploads(self, bucket: s3.Bucket) -> None:
        """Let this bucket send a message for every object that is created under ``uploads/``.

        S3 looks whether it may when the bucket is made, so the policy comes first and cannot name the bucket: it allows those
        of this account whose names begin as CloudFormation names this stack's.
        """
        stack = Stack.of(self)
        self.resource.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal("s3.amazonaws.com")],
                actions=["sqs:SendMessage"],
                resources=[self.resource.queue_arn],
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {"aws:SourceArn": f"arn:{stack.partition}:s3:::{stack.stack_name.lower()}-*"},
                },
            )
        )
        resource = cast(s3.CfnBucket, bucket.node.default_child)
        # The property itself: `Bucket.add_event_notification` would add a Lambda that sets it after the fact.
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
