"""The audit archive gets every model and tool call, and only its own roles can write to it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.environments import DEV, ENVIRONMENTS, Environment

from .conftest import CALLING, Deployment, function_name, statements_of


def _stream(deployment: Deployment) -> tuple[str, dict[str, Any]]:
    ((logical_id, stream),) = deployment.resources("AWS::KinesisFirehose::DeliveryStream")
    return logical_id, stream["Properties"]


def _role(deployment: Deployment, reference: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the trust policy and the statements of this role of the parent stack."""
    name = reference["Fn::GetAtt"][0]
    (trust,) = deployment.api["Resources"][name]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    return trust, statements_of(deployment.api, name)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_log_of_every_function_that_calls_models_or_tools_is_subscribed_to(
    deployments: dict[str, Deployment], name: str
) -> None:
    deployment = deployments[name]
    subscribed = []
    for _, subscription in deployment.resources("AWS::Logs::SubscriptionFilter"):
        properties = subscription["Properties"]
        subscribed.append(function_name(_exported(deployment, deployment.argument(properties["LogGroupName"]["Ref"]))))
        assert properties["FilterPattern"] == '{ $.event = "call" }'
        assert deployment.argument(properties["DestinationArn"]["Ref"]) == {"Fn::GetAtt": [_stream(deployment)[0], "Arn"]}
    assert sorted(subscribed) == sorted(CALLING)
    assert {"chat-completions", "sessions-append", "tools-execute", "worker-jobs"} <= CALLING


def _exported(deployment: Deployment, reference: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of the log group that an output of a nested stack names."""
    (group,) = {
        stack["Outputs"][reference["Fn::GetAtt"][1].removeprefix("Outputs.")]["Value"]["Ref"]
        for stack in deployment.nested()
        if reference["Fn::GetAtt"][1].removeprefix("Outputs.") in stack.get("Outputs", {})
    }
    properties: dict[str, Any] = dict(deployment.resources("AWS::Logs::LogGroup"))[group]["Properties"]
    return properties


def test_subscriptions_are_created_last_after_the_sending_role(prod: Deployment) -> None:
    """CloudWatch Logs sends a test message when it creates a subscription. If the role is seconds old, the message and so the
    deployment fail."""
    resources = prod.api["Resources"]
    policies = {name for name, one in resources.items() if one["Type"] == "AWS::IAM::Policy" and "Sender" in name}
    assert policies
    stacks = {name for name, one in resources.items() if one["Type"] == "AWS::CloudFormation::Stack"}
    (last,) = [name for name in stacks if name.startswith("subscriptions")]
    assert policies | (stacks - {last}) <= set(resources[last]["DependsOn"])
    assert not [name for name, one in resources.items() if last in json.dumps(one) and name != last], "no resource depends on it"
    assert not [one for stack in prod.nested() for one in stack["Resources"].values() if "Subscription" in one["Type"]]


def test_cloudwatch_logs_may_only_put_lines_into_the_stream(prod: Deployment) -> None:
    subscriptions = [one["Properties"] for _, one in prod.resources("AWS::Logs::SubscriptionFilter")]
    (role,) = {json.dumps(prod.argument(one["RoleArn"]["Ref"])) for one in subscriptions}
    trust, allowed = _role(prod, json.loads(role))
    assert trust["Principal"] == {"Service": "logs.amazonaws.com"}
    logs = ["arn:", {"Ref": "AWS::Partition"}, ":logs:eu-central-1:", {"Ref": "AWS::AccountId"}, ":*"]
    assert trust["Condition"] == {"StringLike": {"aws:SourceArn": {"Fn::Join": ["", logs]}}}
    assert allowed == [
        {
            "Effect": "Allow",
            "Action": ["firehose:PutRecord", "firehose:PutRecordBatch"],
            "Resource": {"Fn::GetAtt": [_stream(prod)[0], "Arn"]},
        }
    ]


def test_the_archive_has_a_prefix_per_day_and_is_encrypted_in_transit(prod: Deployment) -> None:
    _, stream = _stream(prod)
    assert stream["DeliveryStreamEncryptionConfigurationInput"] == {"KeyType": "AWS_OWNED_CMK"}
    target = stream["ExtendedS3DestinationConfiguration"]
    assert target["BucketARN"]["Fn::Join"][1][-1] == {"Fn::ImportValue": "spass-prod-BucketName"}
    assert target["CompressionFormat"] == "GZIP"
    assert target["Prefix"] == "audit/records/day=!{timestamp:yyyy-MM-dd}/"
    assert target["ErrorOutputPrefix"] == "audit/failed/!{firehose:error-output-type}/day=!{timestamp:yyyy-MM-dd}/"
    steps = [processor["Type"] for processor in target["ProcessingConfiguration"]["Processors"]]
    assert steps == ["Decompression", "CloudWatchLogProcessing", "AppendDelimiterToRecord"]


def test_firehose_may_write_to_the_archives_prefix_only(prod: Deployment) -> None:
    _, stream = _stream(prod)
    trust, allowed = _role(prod, stream["ExtendedS3DestinationConfiguration"]["RoleARN"])
    assert trust["Principal"] == {"Service": "firehose.amazonaws.com"}
    assert trust["Condition"] == {"StringEquals": {"sts:ExternalId": {"Ref": "AWS::AccountId"}}}
    bucket = ["arn:", {"Ref": "AWS::Partition"}, ":s3:::", {"Fn::ImportValue": "spass-prod-BucketName"}]
    objects, whole, logs = allowed
    assert (objects["Resource"]["Fn::Join"][1], whole["Resource"]["Fn::Join"][1]) == ([*bucket, "/audit/*"], bucket)
    assert not [action for action in whole["Action"] if "Object" in action]
    assert {action.partition(":")[0] for action in logs["Action"]} == {"logs"}


def test_a_failed_write_to_the_archive_raises_an_alarm(prod: Deployment) -> None:
    alarms = [alarm["Properties"] for _, alarm in prod.resources("AWS::CloudWatch::Alarm")]
    (late,) = [alarm for alarm in alarms if alarm.get("Namespace") == "AWS/Firehose"]
    assert (late["MetricName"], late["Threshold"]) == ("DeliveryToS3.DataFreshness", 3600)
    assert late["Dimensions"] == [{"Name": "DeliveryStreamName", "Value": {"Ref": _stream(prod)[0]}}]


def test_an_environment_may_have_no_archive(synthesize: Callable[[Environment], Deployment]) -> None:
    deployment = synthesize(replace(DEV, audit_archive_days=None, alarms=True, metrics=True))
    assert not list(deployment.resources("AWS::KinesisFirehose::DeliveryStream"))
    assert not list(deployment.resources("AWS::Logs::SubscriptionFilter"))
    ((_, bucket),) = deployment.resources("AWS::S3::Bucket")
    rules = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert not [rule for rule in rules if rule.get("Prefix") == "audit/"], (
        "archived records must not expire when the archive is removed"
    )
