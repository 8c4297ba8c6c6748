"""The audit archive: copy one line of JSON for each model or tool call from the logs to the bucket.

CloudWatch Logs selects the lines. Firehose buffers, decompresses and writes them. Neither costs anything without lines.
"""

from typing import Final

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kinesisfirehose as firehose
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.acknowledge import acknowledge
from infra.constructs.bucket import AUDIT
from infra.constructs.function import Function
from infra.constructs.key import key_statements
from infra.constructs.roles import wildcard_finding

# Matches the line that `metering/audit.py` writes for each call.
_CALLS: Final = '{ $.event = "call" }'
# Hive's partition format, which query engines recognize. The day is the UTC day on which the line arrived at Firehose.
_RECORDS: Final = f"{AUDIT}records/day=!{{timestamp:yyyy-MM-dd}}/"
_FAILED: Final = f"{AUDIT}failed/!{{firehose:error-output-type}}/day=!{{timestamp:yyyy-MM-dd}}/"
_GATHER_SECONDS: Final = 300
_GATHER_MIB: Final = 16

Processor = firehose.CfnDeliveryStream.ProcessorProperty
Parameter = firehose.CfnDeliveryStream.ProcessorParameterProperty


class AuditArchive(Construct):
    """A delivery stream to ``audit/`` in the bucket of this name. Functions have no permissions there.

    ``key`` is the ARN of the key of KMS that encrypts the bucket, if it is not S3's own.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        bucket: str,
        log_retention: logs.RetentionDays,
        log_removal: RemovalPolicy,
        key: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        errors = logs.LogGroup(self, "Errors", retention=log_retention, removal_policy=log_removal)
        stream = logs.LogStream(self, "ErrorStream", log_group=errors, removal_policy=log_removal)
        writer = self._create_writer(f"arn:{stack.partition}:s3:::{bucket}", errors, key)
        self.resource = firehose.CfnDeliveryStream(
            self,
            "Stream",
            delivery_stream_type="DirectPut",
            delivery_stream_encryption_configuration_input=firehose.CfnDeliveryStream.DeliveryStreamEncryptionConfigurationInputProperty(
                key_type="AWS_OWNED_CMK"
            ),
            extended_s3_destination_configuration=firehose.CfnDeliveryStream.ExtendedS3DestinationConfigurationProperty(
                bucket_arn=f"arn:{stack.partition}:s3:::{bucket}",
                role_arn=writer.role_arn,
                prefix=_RECORDS,
                error_output_prefix=_FAILED,
                compression_format="GZIP",
                file_extension=".jsonl.gz",
                buffering_hints=firehose.CfnDeliveryStream.BufferingHintsProperty(
                    interval_in_seconds=_GATHER_SECONDS, size_in_m_bs=_GATHER_MIB
                ),
                cloud_watch_logging_options=firehose.CfnDeliveryStream.CloudWatchLoggingOptionsProperty(
                    enabled=True, log_group_name=errors.log_group_name, log_stream_name=stream.log_stream_name
                ),
                processing_configuration=_line_extraction(),
            ),
        )
        self.resource.node.add_dependency(writer)
        self._sender = self._create_sender()

    @property
    def name(self) -> str:
        """Return the name of the delivery stream."""
        return self.resource.ref

    def subscribe(self, scope: Construct, construct_id: str, function: Function) -> None:
        """Archive the calls of this function. CloudWatch Logs sends a test message when it creates the subscription, so the role
        that sends must be in force before ``scope`` is created (``stacks/subscriptions.py``)."""
        logs.CfnSubscriptionFilter(
            scope,
            construct_id,
            log_group_name=function.log_group.log_group_name,
            filter_pattern=_CALLS,
            destination_arn=self.resource.attr_arn,
            role_arn=self._sender.role_arn,
        ).node.add_dependency(self._sender)

    def _create_writer(self, bucket: str, errors: logs.LogGroup, key: str | None) -> iam.Role:
        """Return the role with which Firehose writes to the bucket.

        (https://docs.aws.amazon.com/firehose/latest/dev/controlling-access.html#using-iam-s3)
        """
        stack = Stack.of(self)
        objects = f"{bucket}/{AUDIT}*"
        role = iam.Role(
            self,
            "Writer",
            assumed_by=iam.ServicePrincipal(
                "firehose.amazonaws.com", conditions={"StringEquals": {"sts:ExternalId": stack.account}}
            ),
        )
        role.add_to_policy(
            iam.PolicyStatement(actions=["s3:PutObject", "s3:AbortMultipartUpload", "s3:GetObject"], resources=[objects])
        )
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads"], resources=[bucket]
            )
        )
        for statement in key_statements(stack, key, decrypt=["s3"], encrypt=["s3"]):
            role.add_to_policy(statement)
        errors.grant_write(role)
        acknowledge(
            role, {wildcard_finding(stack, objects): "The archive is a prefix of its own, which nothing else writes under."}
        )
        return role

    def _create_sender(self) -> iam.Role:
        """Return the role with which CloudWatch Logs sends lines to Firehose.

        (https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/SubscriptionFilters.html#FirehoseExample)
        """
        stack = Stack.of(self)
        sources = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:*"
        role = iam.Role(
            self,
            "Sender",
            assumed_by=iam.ServicePrincipal("logs.amazonaws.com", conditions={"StringLike": {"aws:SourceArn": sources}}),
        )
        role.add_to_policy(
            iam.PolicyStatement(actions=["firehose:PutRecord", "firehose:PutRecordBatch"], resources=[self.resource.attr_arn])
        )
        return role


def _line_extraction() -> firehose.CfnDeliveryStream.ProcessingConfigurationProperty:
    """Return the processors that extract the lines: CloudWatch Logs sends them compressed and in an envelope."""
    return firehose.CfnDeliveryStream.ProcessingConfigurationProperty(
        enabled=True,
        processors=[
            Processor(type="Decompression", parameters=[Parameter(parameter_name="CompressionFormat", parameter_value="GZIP")]),
            Processor(
                type="CloudWatchLogProcessing",
                parameters=[Parameter(parameter_name="DataMessageExtraction", parameter_value="true")],
            ),
            Processor(type="AppendDelimiterToRecord"),
        ],
    )
