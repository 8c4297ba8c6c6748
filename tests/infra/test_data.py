"""Stored data survives every deployment, and the laptop has the same resources."""

from typing import Any

import pytest

from infra.environments import ENVIRONMENTS
from infra.template import PATH, local_template

from .conftest import Deployment

# Properties whose change makes CloudFormation replace the resource: the AWS documentation says "Update requires: Replacement".
REPLACING = {
    "AWS::DynamoDB::Table": (
        "TableName",
        "KeySchema",
        "AttributeDefinitions",
        "LocalSecondaryIndexes",
        "ImportSourceSpecification",
    ),
    "AWS::S3::Bucket": ("BucketName", "BucketNamePrefix", "BucketNamespace", "ObjectLockEnabled"),
    "AWS::SQS::Queue": ("QueueName", "FifoQueue"),
}
KEYS = {
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "S"}],
}
PINNED: dict[tuple[str, str], dict[str, Any]] = {
    ("AWS::DynamoDB::Table", "ItemsTableE2D1F4C3"): KEYS,
    ("AWS::S3::Bucket", "ObjectsBucket5A707942"): {},
    ("AWS::SQS::Queue", "JobsQueue24944186"): {},
    ("AWS::SQS::Queue", "JobsFailedF1091AC7"): {},
    ("AWS::SQS::Queue", "CompactionsQueueF5287A23"): {},
    ("AWS::SQS::Queue", "CompactionsFailed9A332D9A"): {},
    ("AWS::SQS::Queue", "RunsQueue4439DC38"): {},
    ("AWS::SQS::Queue", "RunsFailedE8AB701A"): {},
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_change_replaces_the_table_the_bucket_or_a_queue(deployments: dict[str, Deployment], name: str) -> None:
    """Another logical id, or another value of one of these properties, makes CloudFormation create an empty resource. The old
    one is retained, but the gateway no longer sees the tenants' data in it. The CDK makes a logical id from the ids of the
    constructs: do not rename or move them. Change ``PINNED`` only together with a way to migrate the data."""
    stored = {
        (kind, logical_id): resource["Properties"]
        for kind in REPLACING
        for logical_id, resource in deployments[name].resources(kind)
    }
    found = {
        (kind, logical_id): {key: value for key, value in properties.items() if key in REPLACING[kind]}
        for (kind, logical_id), properties in stored.items()
    }
    assert found == PINNED


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_table_the_bucket_and_the_queues_are_retained(deployments: dict[str, Deployment], name: str) -> None:
    for kind, logical_id in PINNED:
        resource = dict(deployments[name].resources(kind))[logical_id]
        assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("Retain", "Retain")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_table_is_protected_recoverable_encrypted_and_free_when_idle(deployments: dict[str, Deployment], name: str) -> None:
    ((_, table),) = deployments[name].resources("AWS::DynamoDB::Table")
    properties = table["Properties"]
    assert properties["DeletionProtectionEnabled"] is True
    assert properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
    assert properties["SSESpecification"] == {"SSEEnabled": True}
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert [key["AttributeName"] for key in properties["KeySchema"]] == ["pk", "sk"]


def test_the_bucket_is_private_encrypted_versioned_and_requires_tls(prod: Deployment) -> None:
    ((_, bucket),) = prod.resources("AWS::S3::Bucket")
    ((_, policy),) = prod.resources("AWS::S3::BucketPolicy")
    properties = bucket["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert "BucketEncryption" in properties
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    conditions = [statement["Condition"] for statement in policy["Properties"]["PolicyDocument"]["Statement"]]
    assert {"Bool": {"aws:SecureTransport": "false"}} in conditions


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_browser_may_only_post_to_the_bucket(deployments: dict[str, Deployment], name: str) -> None:
    ((_, bucket),) = deployments[name].resources("AWS::S3::Bucket")
    rules = bucket["Properties"]["CorsConfiguration"]["CorsRules"]
    assert rules == [{"AllowedMethods": ["POST"], "AllowedOrigins": ["*"]}]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_bucket_is_public_and_none_is_a_website(deployments: dict[str, Deployment], name: str) -> None:
    for _, bucket in deployments[name].resources("AWS::S3::Bucket"):
        assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
        assert "WebsiteConfiguration" not in bucket["Properties"]
    for _, policy in deployments[name].resources("AWS::S3::BucketPolicy"):
        allowed = [one for one in policy["Properties"]["PolicyDocument"]["Statement"] if one["Effect"] == "Allow"]
        assert not [one for one in allowed if one["Principal"] in ("*", {"AWS": "*"})]


def test_deleted_data_disappears_with_its_recovery_period(prod: Deployment) -> None:
    ((_, bucket),) = prod.resources("AWS::S3::Bucket")
    rules = {rule["Id"]: rule for rule in bucket["Properties"]["LifecycleConfiguration"]["Rules"]}
    assert rules["deleted"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": prod.environment.recovery_days}
    assert rules["deleted"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert "ExpirationInDays" not in rules["deleted"]


def test_only_transient_objects_uploaded_files_and_the_audit_archive_expire(prod: Deployment) -> None:
    ((_, bucket),) = prod.resources("AWS::S3::Bucket")
    expiring = [rule for rule in bucket["Properties"]["LifecycleConfiguration"]["Rules"] if "ExpirationInDays" in rule]
    transient, uploads, archive = expiring
    assert transient["TagFilters"] == [{"Key": "lifetime", "Value": "days"}]
    assert "Prefix" not in transient
    assert (uploads["Prefix"], uploads["ExpirationInDays"]) == ("uploads/", 30)
    assert (archive["Prefix"], archive["ExpirationInDays"]) == ("audit/", prod.environment.audit_archive_days)


def test_the_api_stack_has_no_stateful_resource(prod: Deployment) -> None:
    for template in [prod.api, *prod.nested()]:
        kinds = {resource["Type"] for resource in template["Resources"].values()}
        assert not kinds & {"AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SQS::Queue"}


def test_the_laptops_template_is_up_to_date() -> None:
    assert PATH.read_text(encoding="utf-8") == local_template(), "run `make template`"
