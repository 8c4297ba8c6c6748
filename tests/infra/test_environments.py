"""The three environments, and the limits of CloudFormation and Lambda."""

import ast
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_s3 as s3
from cfnlint.api import lint  # type: ignore[import-untyped]
from cfnlint.config import ManualArgs  # type: ignore[import-untyped]

from infra.application import add_stacks
from infra.environments import DEV, ENVIRONMENTS, PROD, STAGING, Environment
from infra.release import release
from infra.routes import ROUTES
from operate.assembly import read_assembly, variables
from tests.sampling import sampled

from .conftest import ENVIRONMENTS_GUIDE, Deployment, Template, function_name

INFRA = Path(__file__).resolve().parents[2] / "infra"

# Accepted findings of cfn-lint. W3005: the CDK names dependencies of functions on their roles that a reference implies already.
ACCEPTED = ["W3005"]


def _findings(environment: Environment, templates: Iterable[Template]) -> list[str]:
    arguments = ManualArgs(ignore_checks=ACCEPTED, regions=[environment.region])
    return [str(match) for template in templates for match in lint(json.dumps(template), config=arguments)]


def test_cfn_lint_finds_nothing_in_any_template_of_prod(prod: Deployment) -> None:
    assert _findings(PROD, sampled(prod.templates(), 3)) == []


@pytest.mark.parametrize("environment", [DEV, STAGING], ids=lambda environment: environment.name)
def test_cfn_lint_finds_nothing_where_other_environments_differ(
    deployments: dict[str, Deployment], environment: Environment
) -> None:
    """The templates of the surfaces differ from those of prod only in their log groups, and the jobs have such groups too."""
    deployment = deployments[environment.name]
    assert _findings(environment, [deployment.data, deployment.jobs]) == []


def test_cfn_lint_finds_nothing_in_the_templates_that_options_change(extended: Deployment) -> None:
    """Snapshots and the permissions of the key are in the templates of all functions; those of the jobs stand for them."""
    assert extended.copies is not None
    assert _findings(extended.environment, [extended.data, extended.api, extended.jobs]) == []
    assert _findings(replace(DEV, region="eu-west-1"), [extended.copies]) == []


def test_an_unacknowledged_finding_of_the_security_rules_stops_the_synthesis(tmp_path: Path) -> None:
    app = App(analytics_reporting=False, context={"aws:cdk:bundling-stacks": []}, outdir=str(tmp_path))
    add_stacks(app, [])
    s3.Bucket(Stack(app, "Careless"), "Open")
    with pytest.raises(RuntimeError, match="AwsSolutions-S1"):
        app.synth()


def test_lambdas_are_created_in_two_files_only() -> None:
    makers = {"lambda_.Function", "lambda_.CfnFunction", "lambda_.DockerImageFunction", "lambda_.SingletonFunction"}
    files = {
        path.relative_to(INFRA).as_posix()
        for path in INFRA.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in makers
    }
    assert files == {"constructs/function.py", "constructs/sandbox.py"}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_function_is_arm64_and_its_log_group_has_a_retention(deployments: dict[str, Deployment], name: str) -> None:
    deployment = deployments[name]
    groups = dict(deployment.resources("AWS::Logs::LogGroup"))
    # And the API's access log, the errors of the state machine, and those of the archive.
    assert len(groups) == len(deployment.functions()) + 3
    days = {group["Properties"]["RetentionInDays"] for group in groups.values()}
    assert days == {{"dev": 7, "staging": 30, "prod": 180}[name]}
    for function in deployment.functions().values():
        assert function["Architectures"] == ["arm64"]
        assert function["Runtime"] == "python3.13"
        assert function["LoggingConfig"]["LogFormat"] == "JSON"
        assert function["LoggingConfig"]["SystemLogLevel"] == "INFO", "a higher level drops the reports of time and memory"
        assert function_name(groups[function["LoggingConfig"]["LogGroup"]["Ref"]]["Properties"]) == function_name(function)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_resources_that_may_outlive_their_stack_have_generated_names(deployments: dict[str, Deployment], name: str) -> None:
    """A fixed name could still be in use: by a retained log group, or by a function of the other stack. A name may contain
    that of its nested stack, whose end CloudFormation generates."""
    names = {
        "AWS::CloudWatch::Alarm": "AlarmName",
        "AWS::DynamoDB::Table": "TableName",
        "AWS::IAM::Role": "RoleName",
        "AWS::KinesisFirehose::DeliveryStream": "DeliveryStreamName",
        "AWS::Lambda::Function": "FunctionName",
        "AWS::Lambda::LayerVersion": "LayerName",
        "AWS::Logs::LogGroup": "LogGroupName",
        "AWS::S3::Bucket": "BucketName",
        "AWS::SNS::Topic": "TopicName",
        "AWS::SQS::Queue": "QueueName",
        "AWS::Scheduler::Schedule": "Name",
        "AWS::StepFunctions::StateMachine": "StateMachineName",
    }
    named = [
        logical_id
        for kind, attribute in names.items()
        for logical_id, resource in deployments[name].resources(kind)
        if (value := resource["Properties"].get(attribute)) is not None and '{"Ref": "AWS::StackName"}' not in json.dumps(value)
    ]
    assert named == []


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_function_has_the_variables_of_its_resources(deployments: dict[str, Deployment], name: str) -> None:
    for function in deployments[name].functions().values():
        variables = function["Environment"]["Variables"]
        assert variables["SPASS_CONFIG"] == "/var/task/config/gateway.yaml"
        assert variables["SPASS_AGENTS"] == "/var/task/config/agents"
        assert variables["SPASS_TABLE"] == {"Fn::ImportValue": f"spass-{name}-TableName"}
        assert variables["SPASS_BUCKET"] == {"Fn::ImportValue": f"spass-{name}-BucketName"}
        assert variables["SPASS_QUEUE"] == {"Fn::ImportValue": f"spass-{name}-QueueUrl"}
        assert variables["SPASS_COMPACTION_QUEUE"] == {"Fn::ImportValue": f"spass-{name}-CompactionQueueUrl"}
        assert variables["SPASS_RUNS_QUEUE"] == {"Fn::ImportValue": f"spass-{name}-RunQueueUrl"}
        assert variables["SPASS_RUNS_QUEUE_ARN"] == {"Fn::ImportValue": f"spass-{name}-RunQueueArn"}
        assert variables["SPASS_KEYS_PATH"] == f"/spass/{name}/"
        assert variables["OPENBLAS_NUM_THREADS"] == "1"
        assert variables["MALLOC_ARENA_MAX"] == "2"
        assert variables["AWS_STS_REGIONAL_ENDPOINTS"] == "regional"


def test_only_production_has_metrics_because_each_is_billed(deployments: dict[str, Deployment]) -> None:
    namespaces = {
        name: {
            function["Environment"]["Variables"].get("SPASS_METRICS_NAMESPACE") for function in deployment.functions().values()
        }
        for name, deployment in deployments.items()
    }
    assert namespaces == {"dev": {None}, "staging": {None}, "prod": {"Spass/prod"}}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_function_logs_telemetry_if_its_environment_does(deployments: dict[str, Deployment], name: str) -> None:
    expected = {"1"} if ENVIRONMENTS[name].telemetry else {None}
    functions = deployments[name].functions().values()
    assert {function["Environment"]["Variables"].get("SPASS_TELEMETRY") for function in functions} == expected


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_stage_has_the_throttling_of_its_environment(deployments: dict[str, Deployment], name: str) -> None:
    ((_, stage),) = deployments[name].resources("AWS::ApiGateway::Stage")
    (settings,) = stage["Properties"]["MethodSettings"]
    environment = ENVIRONMENTS[name]
    assert settings["ThrottlingRateLimit"] == environment.rate
    assert settings["ThrottlingBurstLimit"] == environment.burst
    assert settings["DataTraceEnabled"] is False


def test_only_production_reserves_concurrency_because_a_new_account_has_none(deployments: dict[str, Deployment]) -> None:
    reserved = {
        name: {
            function: one["ReservedConcurrentExecutions"]
            for function, one in deployment.functions().items()
            if "ReservedConcurrentExecutions" in one
        }
        for name, deployment in deployments.items()
    }
    prod = {"streams-get": 60, "managed-run-stream": 40, "worker-compaction-step": 21}
    assert reserved == {"dev": {}, "staging": {}, "prod": prod}
    guide = ENVIRONMENTS_GUIDE.read_text(encoding="utf-8")
    assert f"`prod` reserves {sum(prod.values())}." in guide
    assert f"a limit of {sum(prod.values()) + 100} at least" in guide.replace("\n", " ")


def test_access_logs_contain_no_header_body_or_query(dev: Deployment) -> None:
    ((_, stage),) = dev.resources("AWS::ApiGateway::Stage")
    line = stage["Properties"]["AccessLogSetting"]["Format"]
    assert "$context.requestId" in line
    assert "$input" not in line
    assert "header" not in line.lower()


def test_production_has_higher_limits_longer_retention_and_alarms() -> None:
    assert DEV.rate < STAGING.rate < PROD.rate
    assert DEV.recovery_days < STAGING.recovery_days < PROD.recovery_days
    assert [environment.alarms for environment in (DEV, STAGING, PROD)] == [False, False, True]


def test_only_an_environment_with_alarms_creates_them(deployments: dict[str, Deployment]) -> None:
    counts = {name: len(list(one.resources("AWS::CloudWatch::Alarm"))) for name, one in deployments.items()}
    assert counts == {"dev": 0, "staging": 0, "prod": 17}


def test_every_alarm_notifies_the_topic(prod: Deployment) -> None:
    ((topic, _),) = prod.resources("AWS::SNS::Topic")
    assert all(alarm["Properties"]["AlarmActions"] == [{"Ref": topic}] for _, alarm in prod.resources("AWS::CloudWatch::Alarm"))


def test_only_alarms_of_this_account_may_publish_to_the_topic(prod: Deployment) -> None:
    """A policy without an Allow replaces the default policy of SNS, and no alarm could publish."""
    ((topic, _),) = prod.resources("AWS::SNS::Topic")
    ((_, policy),) = prod.resources("AWS::SNS::TopicPolicy")
    assert policy["Properties"]["Topics"] == [{"Ref": topic}]
    statements = policy["Properties"]["PolicyDocument"]["Statement"]
    (allowed,) = [statement for statement in statements if statement["Effect"] == "Allow"]
    assert {key: value for key, value in allowed.items() if key != "Sid"} == {
        "Effect": "Allow",
        "Principal": {"Service": "cloudwatch.amazonaws.com"},
        "Action": "sns:Publish",
        "Resource": {"Ref": topic},
        "Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}},
    }
    for denied in (statement for statement in statements if statement["Effect"] == "Deny"):
        assert denied["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_data_stack_is_protected_from_termination(deployments: dict[str, Deployment], name: str) -> None:
    assert deployments[name].data_protected is True


def test_no_function_has_snapshots_by_default(deployments: dict[str, Deployment]) -> None:
    for deployment in deployments.values():
        assert not any("SnapStart" in function for function in deployment.functions().values())
        assert not list(deployment.resources("AWS::Lambda::Version"))


def test_with_snapshots_the_long_routes_are_invoked_by_an_alias_of_a_version(extended: Deployment) -> None:
    long = {route.function_name for route in ROUTES if route.long}
    snapped = {name for name, function in extended.functions().items() if function.get("SnapStart")}
    aliases = dict(extended.resources("AWS::Lambda::Alias"))
    assert snapped == long
    assert len(aliases) == len(long)
    for name, function in extended.functions().items():
        variables = function["Environment"]["Variables"]
        assert ("AWS_LWA_SNAPSTART_AFTER_RESTORE_PATH" in variables) == (name in long)
    for route in ROUTES:
        assert route.path != "/restored"
        uri = extended.methods()[route.method, route.resource]["x-amazon-apigateway-integration"]["uri"]
        assert (extended.output(uri["Fn::Join"][1][3]).get("Ref") in aliases) == route.long


def test_alarms_without_a_subscriber_give_a_warning(deployments: dict[str, Deployment], extended: Deployment) -> None:
    assert [name for name in ENVIRONMENTS if deployments[name].warnings] == ["prod"]
    assert extended.warnings == []


def test_an_alarm_address_is_subscribed(extended: Deployment) -> None:
    ((_, subscription),) = extended.resources("AWS::SNS::Subscription")
    assert subscription["Properties"]["Endpoint"] == "operator@example.org"


def test_operate_reads_the_assembly_that_would_be_deployed(prod: Deployment) -> None:
    assembly = read_assembly(prod.folder, "prod")
    assert assembly.api.templates[0] == prod.api
    assert len(assembly.api.templates) == 1 + len([*prod.resources("AWS::CloudFormation::Stack")])
    assert [stack.name for stack in assembly.stacks] == ["Spass-prod-Data", "Spass-prod-Api"]
    assert (assembly.account, assembly.region, assembly.release) == (None, "eu-central-1", release())
    assert assembly.api.bootstrap == 6
    assert assembly.api.bootstrap_parameter == "/cdk-bootstrap/hnb659fds/version"


def test_operate_finds_in_the_assembly_what_its_checks_read(extended: Deployment) -> None:
    assembly = read_assembly(extended.folder, "prod")
    assert [stack.region for stack in assembly.stacks] == ["eu-west-1", "eu-central-1", "eu-central-1"]
    (domain,) = assembly.resources("AWS::ApiGateway::DomainName")
    assert {"DomainName", "RegionalCertificateArn"} <= domain.keys()
    (budget,) = assembly.resources("AWS::Budgets::Budget")
    assert budget["Budget"]["CostFilters"]["TagKeyValue"] == ["user:spass:environment$prod"]
    assert len([*assembly.resources("AWS::Backup::BackupPlan")]) == 1
    assert [vault["BackupVaultName"] for vault in assembly.resources("AWS::Backup::BackupVault")] == ["spass-prod"] * 2
    assert len([*assembly.resources("AWS::ApiGateway::Account")]) == len([*assembly.resources("AWS::EC2::VPC")]) == 1
    foreign = {
        layer["Fn::Join"][1][-1]
        for function in assembly.resources("AWS::Lambda::Function")
        for layer in function.get("Layers", [])
        if "Fn::Join" in layer
    }
    assert foreign == {":lambda:eu-central-1:753240598075:layer:LambdaAdapterLayerArm64:30"}
    assert variables(assembly.api.templates, "SPASS_KEYS_PATH") == {"/spass/prod/"}
