"""What is stored outlives every deployment, and the laptop has the same."""

import pytest

from infra.environments import ENVIRONMENTS
from infra.template import PATH, local_template

from .conftest import Deployment


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_table_and_bucket_are_retained_in_every_environment(deployments: dict[str, Deployment], name: str) -> None:
    kinds = ("AWS::DynamoDB::Table", "AWS::S3::Bucket")
    stores = [resource for kind in kinds for _, resource in deployments[name].resources(kind)]
    assert len(stores) == 2
    for store in stores:
        assert store["DeletionPolicy"] == "Retain"
        assert store["UpdateReplacePolicy"] == "Retain"


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


def test_the_bucket_is_private_encrypted_versioned_and_speaks_only_tls(prod: Deployment) -> None:
    ((_, bucket),) = prod.resources("AWS::S3::Bucket")
    ((_, policy),) = prod.resources("AWS::S3::BucketPolicy")
    properties = bucket["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert "BucketEncryption" in properties
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    conditions = [statement["Condition"] for statement in policy["Properties"]["PolicyDocument"]["Statement"]]
    assert {"Bool": {"aws:SecureTransport": "false"}} in conditions


def test_what_a_tenant_deletes_is_gone_once_it_can_no_longer_be_recovered(prod: Deployment) -> None:
    ((_, bucket),) = prod.resources("AWS::S3::Bucket")
    rules = {rule["Id"]: rule for rule in bucket["Properties"]["LifecycleConfiguration"]["Rules"]}
    assert rules["deleted"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": prod.environment.recovery_days}
    assert rules["deleted"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert "ExpirationInDays" not in rules["deleted"]


def test_only_objects_tagged_as_transient_uploaded_files_and_the_audits_archive_ever_expire(prod: Deployment) -> None:
    ((_, bucket),) = prod.resources("AWS::S3::Bucket")
    expiring = [rule for rule in bucket["Properties"]["LifecycleConfiguration"]["Rules"] if "ExpirationInDays" in rule]
    transient, uploads, archive = expiring
    assert transient["TagFilters"] == [{"Key": "lifetime", "Value": "days"}]
    assert "Prefix" not in transient
    assert (uploads["Prefix"], uploads["ExpirationInDays"]) == ("uploads/", 30)
    assert (archive["Prefix"], archive["ExpirationInDays"]) == ("audit/", prod.environment.audit_archive_days)


def test_nothing_stateful_stands_in_the_stack_that_may_be_thrown_away(prod: Deployment) -> None:
    for template in [prod.api, *prod.nested()]:
        kinds = {resource["Type"] for resource in template["Resources"].values()}
        assert not kinds & {"AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SQS::Queue"}


def test_the_laptops_template_is_what_a_fresh_synthesis_gives() -> None:
    assert PATH.read_text(encoding="utf-8") == local_template(), "run `make template`"
