"""The options of an environment: each makes what it says, with the least rights, and without one there is nothing of it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from aws_cdk import App, Stack

from infra.constructs.traces import export_statements, export_variables
from infra.environments import DEV, PROD, Domain, Restored, Traces
from infra.routes import Permission
from infra.stacks.data import DataStack

from .conftest import ROWS, Deployment, Template, actions_of, statements_of
from .test_data import PINNED, REPLACING

KEY: Final = {"Fn::ImportValue": "spass-prod-KeyArn"}
OWN: Final = frozenset(
    {"AWS::ApiGateway::DomainName", "AWS::Backup::BackupPlan", "AWS::Budgets::Budget", "AWS::KMS::Key", "AWS::WAFv2::WebACL"}
)
PERMISSIONS: Final[Mapping[str, set[Permission]]] = {
    name: {permission for row in ROWS if row.function_name == name for permission in row.permissions}
    for name in sorted({row.function_name for row in ROWS})
}
SENDS: Final = {Permission.JOBS_SEND, Permission.COMPACTIONS_SEND, Permission.RUNS_SEND}
QUEUE_WORKERS: Final = {"worker-jobs", "worker-compactions", "worker-runs"}


def only(template: Template, kind: str) -> dict[str, Any]:
    """Return the properties of the one resource of this type."""
    (resource,) = [one for one in template["Resources"].values() if one["Type"] == kind]
    properties: dict[str, Any] = resource["Properties"]
    return properties


def services(statements: list[dict[str, Any]], action: str) -> set[str]:
    """Return the services through which these statements allow an action with the environment's key."""
    allowed = [one for one in statements if one["Action"] == action]
    assert all(one["Resource"] == KEY and [*one["Condition"]] == ["StringEquals"] for one in allowed)
    through = [name for one in allowed for name in one["Condition"]["StringEquals"]["kms:ViaService"]]
    return {name["Fn::Join"][1][0].removesuffix(".eu-central-1.") for name in through}


def test_without_an_option_there_is_nothing_of_it(deployments: dict[str, Deployment]) -> None:
    for deployment in deployments.values():
        assert not {kind for kind in OWN if [*deployment.resources(kind)]}
        assert "kms:" not in json.dumps(deployment.templates())
        assert deployment.copies is None


def test_the_options_replace_nothing_that_is_stored(extended: Deployment) -> None:
    stored = {
        (kind, name): {key: value for key, value in one["Properties"].items() if key in REPLACING[kind]}
        for kind in REPLACING
        for name, one in extended.resources(kind)
    }
    assert stored == PINNED


def test_the_domain_leads_to_the_stage_and_the_generated_endpoint_is_off(extended: Deployment, prod: Deployment) -> None:
    ((name, domain),) = extended.resources("AWS::ApiGateway::DomainName")
    assert {key: value for key, value in domain["Properties"].items() if key != "Tags"} == {
        "DomainName": "api.example.org",
        "RegionalCertificateArn": "arn:aws:acm:eu-central-1:123456789012:certificate/0a1b2c3d-0000-4000-8000-000000000000",
        "EndpointConfiguration": {"Types": ["REGIONAL"]},
        "SecurityPolicy": "SecurityPolicy_TLS13_1_3_2025_09",
        "EndpointAccessMode": "STRICT",
    }
    ((api, _),), ((stage, _),) = extended.resources("AWS::ApiGateway::RestApi"), extended.resources("AWS::ApiGateway::Stage")
    mapping = only(extended.api, "AWS::ApiGateway::BasePathMapping")
    assert mapping == {"DomainName": {"Ref": name}, "RestApiId": {"Ref": api}, "Stage": {"Ref": stage}}
    assert only(extended.api, "AWS::Route53::RecordSet") == {
        "HostedZoneId": "Z0123456789ABCDEFGHIJ",
        "Name": "api.example.org.",
        "Type": "A",
        "AliasTarget": {
            "DNSName": {"Fn::GetAtt": [name, "RegionalDomainName"]},
            "HostedZoneId": {"Fn::GetAtt": [name, "RegionalHostedZoneId"]},
        },
    }
    assert extended.api["Outputs"]["Url"]["Value"] == "https://api.example.org"
    assert extended.api["Outputs"]["DomainTarget"]["Value"] == {"Fn::GetAtt": [name, "RegionalDomainName"]}
    assert (extended.rest_api()["DisableExecuteApiEndpoint"], prod.rest_api()["DisableExecuteApiEndpoint"]) == (True, False)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "off"])
def test_the_domain_says_whether_the_generated_endpoint_is_off(keep: bool) -> None:
    domain = Domain(name="a.example.org", certificate="arn:aws:acm:eu-central-1:123456789012:certificate/0a", keep_endpoint=keep)
    assert replace(DEV, domain=domain).endpoint_disabled is not keep
    assert not DEV.endpoint_disabled


def test_the_web_acl_limits_addresses_and_tokens_and_counts_everything_else(extended: Deployment) -> None:
    acl = only(extended.api, "AWS::WAFv2::WebACL")
    assert (acl["Scope"], acl["DefaultAction"]) == ("REGIONAL", {"Allow": {}})
    *limits, common = sorted(acl["Rules"], key=lambda rule: int(rule["Priority"]))
    assert [rule["Action"] for rule in limits] == [{"Block": {}}] * 3
    rates = [rule["Statement"]["RateBasedStatement"] for rule in limits]
    assert [(one["Limit"], one["EvaluationWindowSec"]) for one in rates] == [(2000, 300), (3000, 300), (3000, 300)]
    assert [one["AggregateKeyType"] for one in rates] == ["IP", "CUSTOM_KEYS", "CUSTOM_KEYS"]
    # A rule counts only requests that have all of its headers, and a client sends one of both.
    assert [[key["Header"]["Name"] for key in one["CustomKeys"]] for one in rates[1:]] == [["authorization"], ["x-api-key"]]
    assert common["OverrideAction"] == {"Count": {}}
    assert common["Statement"]["ManagedRuleGroupStatement"] == {"VendorName": "AWS", "Name": "AWSManagedRulesCommonRuleSet"}
    shown = [one["VisibilityConfig"]["SampledRequestsEnabled"] for one in (acl, *acl["Rules"])]
    assert not any(shown), "samples would show tokens"
    association = only(extended.api, "AWS::WAFv2::WebACLAssociation")
    ((stage, _),) = extended.resources("AWS::ApiGateway::Stage")
    assert association["ResourceArn"]["Fn::Join"][1][-1] == {"Ref": stage}


def test_what_the_web_acl_blocks_is_a_429_of_the_gateway(extended: Deployment) -> None:
    blocked = extended.rest_api()["Body"]["x-amazon-apigateway-gateway-responses"]["WAF_FILTERED"]
    assert str(blocked["statusCode"]) == "429"
    assert blocked["responseParameters"]["gatewayresponse.header.Retry-After"] == "'60'"
    assert json.loads(blocked["responseTemplates"]["application/json"])["error"]["code"] == "rate_limited"


def test_the_budget_counts_what_has_the_tag_and_writes_at_four_points(extended: Deployment) -> None:
    budget = only(extended.api, "AWS::Budgets::Budget")
    assert budget["Budget"] == {
        "BudgetType": "COST",
        "TimeUnit": "MONTHLY",
        "BudgetLimit": {"Amount": 300, "Unit": "USD"},
        "CostFilters": {"TagKeyValue": ["user:spass:environment$prod"]},
    }
    table = only(extended.data, "AWS::DynamoDB::Table")
    assert {"Key": "spass:environment", "Value": "prod"} in table["Tags"]
    notices = budget["NotificationsWithSubscribers"]
    assert [(one["Notification"]["NotificationType"], one["Notification"]["Threshold"]) for one in notices] == [
        ("ACTUAL", 50),
        ("ACTUAL", 80),
        ("ACTUAL", 100),
        ("FORECASTED", 100),
    ]
    for one in notices:
        assert one["Subscribers"] == [{"SubscriptionType": "EMAIL", "Address": "operator@example.org"}]
        assert (one["Notification"]["ComparisonOperator"], one["Notification"]["ThresholdType"]) == ("GREATER_THAN", "PERCENTAGE")


def test_every_function_may_send_spans_to_xray_and_has_the_variables_for_it(extended: Deployment, prod: Deployment) -> None:
    for template in extended.nested():
        functions = [one["Properties"] for one in template["Resources"].values() if one["Type"] == "AWS::Lambda::Function"]
        for function in functions:
            sends = [one for one in statements_of(template, function["Role"]["Fn::GetAtt"][0]) if "xray" in json.dumps(one)]
            assert [(actions_of(one), one["Resource"]) for one in sends] == [(["xray:PutTraceSegments"], "*")]
            variables = function["Environment"]["Variables"]
            assert variables["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "https://xray.eu-central-1.amazonaws.com/v1/traces"
            assert (variables["OTEL_TRACES_SAMPLER_ARG"], variables["SPASS_TRACES_SIGN"]) == ("0.05", "xray")
            assert variables["OTEL_RESOURCE_ATTRIBUTES"] == "deployment.environment.name=prod"
    off = json.dumps(prod.templates())
    assert "xray:" not in off
    assert "OTEL_" not in off


def test_the_headers_of_spans_are_one_parameter_that_functions_may_read() -> None:
    traces = Traces(endpoint="https://a.de/v1/traces", sample=1.0, headers_parameter="/spass/prod/TRACE_HEADERS")
    (statement,) = export_statements(Stack(App(), "Stack"), traces)
    assert statement.actions == ["ssm:GetParameters"]
    assert [arn.rpartition(":")[2] for arn in statement.resources] == ["parameter/spass/prod/TRACE_HEADERS"]
    assert export_variables(replace(PROD, traces=traces))["SPASS_TRACES_HEADERS_PARAMETER"] == "/spass/prod/TRACE_HEADERS"


def test_the_key_encrypts_the_table_the_bucket_the_queues_and_the_topic(extended: Deployment) -> None:
    ((name, key),) = extended.resources("AWS::KMS::Key")
    arn = {"Fn::GetAtt": [name, "Arn"]}
    assert (key["DeletionPolicy"], key["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert key["Properties"]["EnableKeyRotation"] is True
    table = only(extended.data, "AWS::DynamoDB::Table")
    assert table["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": arn}
    (rule,) = only(extended.data, "AWS::S3::Bucket")["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule == {
        "BucketKeyEnabled": True,
        "ServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": arn},
    }
    queues = [queue["Properties"] for _, queue in extended.resources("AWS::SQS::Queue")]
    assert len(queues) == 6
    assert all(queue["KmsMasterKeyId"] == arn for queue in queues)
    assert only(extended.api, "AWS::SNS::Topic")["KmsMasterKeyId"] == KEY
    assert extended.data["Outputs"]["KeyArn"] == {"Value": arn, "Export": {"Name": "spass-prod-KeyArn"}}


def test_the_keys_policy_allows_only_the_account_and_services_that_act_for_it(extended: Deployment) -> None:
    """Without the second statement S3 could not announce an upload, and no alarm could publish."""
    root, acting = only(extended.data, "AWS::KMS::Key")["KeyPolicy"]["Statement"]
    assert root["Principal"]["AWS"]["Fn::Join"][1][-1] == ":root"
    assert acting["Principal"] == {"Service": ["s3.amazonaws.com", "cloudwatch.amazonaws.com"]}
    assert acting["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    assert acting["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


@pytest.mark.parametrize("name", PERMISSIONS)
def test_a_role_uses_the_key_only_through_services_that_it_uses(extended: Deployment, name: str) -> None:
    own, twin, permissions = extended.statements(name), extended.twin_statements(name), PERMISSIONS[name]
    actions = {action for one in [*own, *twin] for action in actions_of(one) if action.startswith("kms:")}
    assert actions <= {"kms:Decrypt", "kms:GenerateDataKey"}
    of_tenant = {
        "dynamodb": bool(permissions & {Permission.TABLE_READ, Permission.TABLE_WRITE}),
        "s3": bool(permissions & {Permission.BUCKET_READ, Permission.UPLOADS_READ}),
    }
    decrypting = {
        "dynamodb": bool(permissions & {*SENDS, Permission.MODELS}),
        "sqs": bool(permissions & SENDS) or name in QUEUE_WORKERS,
    }
    writes = bool(permissions & {Permission.BUCKET_WRITE, Permission.UPLOADS_WRITE})
    assert services(twin, "kms:Decrypt") == {service for service, used in of_tenant.items() if used}
    assert services(twin, "kms:GenerateDataKey") == ({"s3"} if writes else set())
    assert services(own, "kms:Decrypt") == {service for service, used in decrypting.items() if used}
    assert services(own, "kms:GenerateDataKey") == ({"sqs"} if permissions & SENDS else set())


def test_ticks_and_the_archive_may_use_the_key(extended: Deployment) -> None:
    roles = {name for name, one in extended.resources("AWS::IAM::Role") if name in extended.api["Resources"]}
    using = {role: services(statements_of(extended.api, role), "kms:GenerateDataKey") for role in roles}
    assert {frozenset(one) for one in using.values() if one} == {frozenset({"sqs"}), frozenset({"s3"})}
    for role, through in using.items():
        assert services(statements_of(extended.api, role), "kms:Decrypt") == through
        assert ("sqs:SendMessage" in json.dumps(statements_of(extended.api, role))) == (through == {"sqs"})


def test_the_restored_names_are_used_everywhere_and_the_own_ones_stay(extended: Deployment) -> None:
    for function in extended.functions().values():
        variables = function["Environment"]["Variables"]
        assert (variables["SPASS_TABLE"], variables["SPASS_BUCKET"]) == ("prod-of-monday", "prod-of-monday-123456789012")
    used = json.dumps([extended.api, *extended.nested(), extended.subscriptions])
    assert "spass-prod-TableName" not in used
    assert "spass-prod-BucketName" not in used
    assert {extended.data["Outputs"][name]["Export"]["Name"] for name in ("TableName", "BucketName")} == {
        "spass-prod-TableName",
        "spass-prod-BucketName",
    }
    alarms = [alarm["Properties"] for _, alarm in extended.resources("AWS::CloudWatch::Alarm")]
    tables = [one["Dimensions"] for one in alarms if one.get("Namespace") == "AWS/DynamoDB"]
    assert tables
    assert all(one == [{"Name": "TableName", "Value": "prod-of-monday"}] for one in tables)


def test_the_queue_of_files_accepts_what_the_restored_bucket_announces(extended: Deployment, prod: Deployment) -> None:
    def announcing(deployment: Deployment) -> object:
        policies = [one["Properties"] for _, one in deployment.resources("AWS::SQS::QueuePolicy")]
        (allowed,) = [one for policy in policies for one in policy["PolicyDocument"]["Statement"] if one["Effect"] == "Allow"]
        return allowed["Condition"]["ArnLike"]["aws:SourceArn"]

    own = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, ":s3:::spass-prod-data-*"]]}
    restored = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, ":s3:::prod-of-monday-123456789012"]]}
    assert announcing(prod) == own
    assert announcing(extended) == [own, restored]


def test_a_copy_of_what_is_used_is_made_daily_and_kept_for_the_recovery_days(extended: Deployment) -> None:
    (rule,) = only(extended.data, "AWS::Backup::BackupPlan")["BackupPlan"]["BackupPlanRule"]
    assert rule["ScheduleExpression"] == "cron(0 3 * * ? *)"
    (copied,) = rule["CopyActions"]
    assert copied["Lifecycle"] == {"DeleteAfterDays": PROD.recovery_days}
    assert extended.copies is not None
    there = only(extended.copies, "AWS::Backup::BackupVault")["BackupVaultName"]
    assert copied["DestinationBackupVaultArn"]["Fn::Join"][1][2::2] == [":backup:eu-west-1:", f":backup-vault:{there}"]
    selection = only(extended.data, "AWS::Backup::BackupSelection")["BackupSelection"]
    assert [one["Fn::Join"][1][-1] for one in selection["Resources"]] == [
        ":table/prod-of-monday",
        ":s3:::prod-of-monday-123456789012",
    ]
    bucket = only(extended.data, "AWS::S3::Bucket")
    assert bucket["NotificationConfiguration"]["EventBridgeConfiguration"] == {"EventBridgeEnabled": True}
    assert bucket["NotificationConfiguration"]["QueueConfigurations"], "uploads are announced as before"
    for template in (extended.data, extended.copies):
        (vault,) = [one for one in template["Resources"].values() if one["Type"] == "AWS::Backup::BackupVault"]
        assert (vault["DeletionPolicy"], vault["UpdateReplacePolicy"]) == ("Retain", "Retain")


def test_the_stacks_are_for_the_account_and_the_region_of_their_environment() -> None:
    environment = replace(DEV, account="123456789012", region="us-east-1")
    stack = DataStack(App(analytics_reporting=False), "Data", environment=environment)
    assert (stack.account, stack.region) == ("123456789012", "us-east-1")


def test_without_restored_names_the_copy_is_of_the_environments_own_ones() -> None:
    app = App(analytics_reporting=False)
    stack = DataStack(app, "Spass-dev-Data", environment=replace(DEV, copy_to="eu-west-1"))
    template = app.synth().get_stack_by_name(stack.stack_name).template
    selection = only(template, "AWS::Backup::BackupSelection")["BackupSelection"]
    assert selection["Resources"] == [{"Fn::GetAtt": [name, "Arn"]} for name in ("ItemsTableE2D1F4C3", "ObjectsBucket5A707942")]


def test_the_restored_table_alone_leaves_the_own_bucket_in_use() -> None:
    stack = DataStack(App(analytics_reporting=False), "Data", environment=replace(DEV, restored=Restored(table="back")))
    assert stack.stored.table == "back"
    assert stack.resolve(stack.stored.bucket) == {"Fn::ImportValue": "spass-dev-BucketName"}
