"""An in-process table, a bucket with versions and a queue, for single-threaded tests of the ingest."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from spass.aws.clients import Aws
from spass.aws.job_targets import JobTargets
from tests.unit.rag.ingest.harness import IngestHarness


@pytest.fixture(scope="module")
def queue() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        boto3.client("dynamodb").create_table(
            TableName="spass",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
        )
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="spass")
        s3.put_bucket_versioning(Bucket="spass", VersioningConfiguration={"Status": "Enabled"})
        yield boto3.client("sqs").create_queue(QueueName="jobs")["QueueUrl"]


@pytest.fixture(scope="module")
def aws(queue: str) -> Aws:
    return Aws(table="spass", bucket="spass", job_targets=JobTargets(queue=queue))


@pytest.fixture
def harness(aws: Aws, queue: str) -> IngestHarness:
    harness = IngestHarness(aws, queue)
    harness.queued()
    return harness


@pytest.fixture
def small_batches(harness: IngestHarness) -> int:
    """Set and return the number of documents of a batch."""
    harness.change_settings(batch_documents=4)
    return 4
