"""`operate check` names what would make a deployment fail or surprise, and changes nothing."""

from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from operate import __main__ as operate
from operate import check_settings
from operate.account import Account, AccountUnreadable
from operate.checkout import Checkout, read_commit
from tests.unit.operate.answering_aws import BODY, COPIES, MODELS, NUMBER, REGION, STACK, AnsweringAws, Built, Refusal, function

OLD: Final = {"Type": "AWS::ApiGateway::Method"}
RETAINED: Final = {**OLD, "DeletionPolicy": "Retain"}
FUNCTION: Final = {"Type": "AWS::Lambda::Function"}
CERTIFICATE: Final = f"arn:aws:acm:{REGION}:{NUMBER}:certificate/1"
LAYER: Final = f"arn:aws:lambda:{REGION}:753240598075:layer:Adapter:30"
JOINED_LAYER: Final = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, LAYER.removeprefix("arn:aws")]]}
DENIED: Final = Refusal("AccessDenied")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AnsweringAws:
    aws = AnsweringAws()
    monkeypatch.setattr(Account, "of_region", lambda _: aws.account)
    monkeypatch.setattr(check_settings, "read_checkout", lambda: Checkout(read_commit()))
    return aws


class Checked:
    """The command with its output and exit status."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self.output = ""

    def __call__(self, built: Built | None = None) -> int:
        folder = (built or Built()).write(self._folder)
        status = operate.main(["check", "--env", "prod", "--assembly", str(folder)])
        self.output = self._capsys.readouterr().out
        return status


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checked:
    return Checked(tmp_path, capsys)


def resource(kind: str, **properties: Any) -> dict[str, Any]:
    return {"Type": kind, "Properties": properties}


def test_an_account_in_which_nothing_is_wrong_has_no_findings(aws: AnsweringAws, check: Checked) -> None:
    assert check() == 0
    assert check.output.splitlines() == [
        f"Checking prod in {REGION}, account {NUMBER} ...",
        "Nothing was found that would make the deployment fail; 0 warnings.",
    ]


def test_a_body_before_the_retain_step_is_refused(aws: AnsweringAws, check: Checked) -> None:
    aws.has({"Path": {"Type": "AWS::ApiGateway::Resource"}, "Kept": RETAINED}, {"Old": OLD, "Function": FUNCTION})
    assert check() == 1
    assert f"- error: CloudFormation would remove 2 methods, paths and refusals of {STACK}" in check.output
    assert "with -c api=retain:" in check.output


def test_an_object_that_only_a_nested_stack_does_not_retain_is_noticed(aws: AnsweringAws, check: Checked) -> None:
    aws.has({"Kept": RETAINED}, {"Old": OLD})
    assert check() == 1


@pytest.mark.parametrize("found", [RETAINED, BODY], ids=["retained", "a body"])
def test_a_body_may_follow_the_retain_step_or_a_body(aws: AnsweringAws, check: Checked, found: dict[str, Any]) -> None:
    aws.has({"One": found}, {"Function": FUNCTION})
    assert check() == 0


def test_the_retain_step_itself_needs_no_look_at_what_is_deployed(aws: AnsweringAws, check: Checked) -> None:
    aws.answers["GetTemplate"] = DENIED
    assert check(Built(api={"Api": resource("AWS::ApiGateway::RestApi", Name="spass-prod")})) == 0


@pytest.mark.parametrize("version", [None, "5"])
def test_an_account_that_is_not_prepared_for_the_cdk_is_named(aws: AnsweringAws, check: Checked, version: str | None) -> None:
    aws.answers["GetParameter"] = {"Parameter": {"Value": version}} if version else Refusal("ParameterNotFound")
    found = "version 5 of the bootstrap stack" if version else "no bootstrap stack"
    assert check() == 1
    assert f"{REGION} has {found} of the CDK." in check.output
    assert f"Run: make cdk ARGS='bootstrap aws://{NUMBER}/{REGION}'" in check.output


def test_the_region_of_the_copies_needs_a_bootstrap_stack_too(aws: AnsweringAws, check: Checked) -> None:
    check(Built(copies={}))
    assert [region for name, region in aws.calls if name == "GetParameter"] == ["eu-west-1", REGION]


def test_credentials_of_another_account_are_named(aws: AnsweringAws, check: Checked) -> None:
    assert check(Built(account="999988887777")) == 1
    assert f"The credentials are of account {NUMBER}, but prod belongs to 999988887777." in check.output


@pytest.mark.parametrize(("unreserved", "status"), [(10, 1), (220, 1), (221, 0)])
def test_reservations_must_leave_100_functions(aws: AnsweringAws, check: Checked, unreserved: int, status: int) -> None:
    aws.answers["GetAccountSettings"] = {
        "AccountLimit": {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": unreserved}
    }
    built = Built(nested={"A": function(reserved=100), "B": function(reserved=21)})
    assert check(built) == status
    assert ("prod reserves 121 concurrent functions" in check.output) == bool(status)
    aws.has({"A": function(reserved=121)})  # they are reserved already
    aws.account.forget()
    assert check(built) == (0 if unreserved == 220 else status)


def test_an_account_with_10_functions_at_once_surprises(aws: AnsweringAws, check: Checked) -> None:
    aws.answers["GetAccountSettings"] = {"AccountLimit": {"ConcurrentExecutions": 10, "UnreservedConcurrentExecutions": 10}}
    source = resource("AWS::Lambda::EventSourceMapping", ScalingConfig={"MaximumConcurrency": 33})
    assert check(Built(nested={"Source": source})) == 0
    assert "- warning: The account runs 10 functions at once, and files, runs and compactions alone may take 33." in check.output


def test_more_memory_than_a_new_account_allows_surprises(aws: AnsweringAws, check: Checked) -> None:
    assert check(Built(nested={"Large": resource("AWS::Lambda::Function", MemorySize=3009)})) == 0
    assert "A function has 3009 MB of memory. A new account allows 3,008 MB" in check.output


@pytest.mark.parametrize(("vpcs", "deployed", "status"), [(4, False, 0), (5, False, 1), (5, True, 0)])
def test_the_sandbox_needs_a_vpc(aws: AnsweringAws, check: Checked, vpcs: int, deployed: bool, status: int) -> None:
    aws.answers["DescribeVpcs"] = {"Vpcs": [{}] * vpcs}
    network = {"Vpc": {"Type": "AWS::EC2::VPC"}}
    if deployed:
        aws.has(network)
    assert check(Built(api={"Api": BODY, **network})) == status
    assert ("has 5 VPCs of 5" in check.output) == bool(status)


@pytest.mark.parametrize(("role", "surprises"), [(None, False), ("Spass-dev-Api-Role", False), ("Shop", True)])
def test_a_logging_role_of_other_apis_is_named(aws: AnsweringAws, check: Checked, role: str | None, surprises: bool) -> None:
    aws.answers["GetAccount"] = {"cloudwatchRoleArn": f"arn:aws:iam::{NUMBER}:role/{role}"} if role else {}
    assert check(Built(api={"Api": BODY, "Account": resource("AWS::ApiGateway::Account")})) == 0
    assert ("Shop, which the deployment replaces." in check.output) == surprises


def test_a_layer_that_the_region_does_not_have_is_refused(aws: AnsweringAws, check: Checked) -> None:
    aws.answers["GetLayerVersionByArn"] = Refusal("AccessDeniedException")
    assert check(Built(nested={"Stream": resource("AWS::Lambda::Function", Layers=[{"Ref": "Own"}, JOINED_LAYER])})) == 1
    assert f"The layer {LAYER} cannot be read (AccessDeniedException)." in check.output


@pytest.mark.parametrize("newest", [30, 31])
def test_an_old_layer_surprises(aws: AnsweringAws, check: Checked, newest: int) -> None:
    aws.answers["GetLayerVersionByArn"] = lambda asked: (
        {} if int(asked["Arn"].rpartition(":")[2]) <= newest else Refusal("AccessDeniedException")
    )
    assert check(Built(nested={"Stream": resource("AWS::Lambda::Function", Layers=[JOINED_LAYER])})) == 0
    assert (f"is old: there is {LAYER[:-2]}31." in check.output) == (newest == 31)


@pytest.mark.parametrize("changed", [(), ("gateway.yaml",)])
def test_an_assembly_of_another_commit_or_of_changed_files_surprises(
    aws: AnsweringAws, check: Checked, monkeypatch: pytest.MonkeyPatch, changed: tuple[str, ...]
) -> None:
    monkeypatch.setattr(check_settings, "read_checkout", lambda: Checkout("56191eaf", changed))
    assert check(Built(variables={"release": "56191eaf-dirty" if changed else "0b0e41ff"})) == 0
    expected = ("56191eaf-dirty", "56191eaf-dirty") if changed else ("0b0e41ff", "56191eaf")
    assert f"The assembly is of {expected[0]}, and the checkout is {expected[1]}." in check.output


@pytest.mark.parametrize("gateway", ["", "tenants: [{id: acme}]\n"])
def test_a_gateway_without_a_tenant_with_a_token_surprises(aws: AnsweringAws, check: Checked, gateway: str) -> None:
    assert check(Built(gateway=MODELS + gateway)) == 0
    assert "- warning: gateway.yaml has no tenant with a token." in check.output


@pytest.mark.parametrize(("gateway", "found"), [(None, "has no gateway.yaml"), ("tenant: 1\n", "gateway.yaml is not valid")])
def test_a_file_that_is_not_bundled_or_not_valid_is_named(
    aws: AnsweringAws, check: Checked, gateway: str | None, found: str
) -> None:
    check(Built(gateway=gateway))
    assert found in check.output


def test_missing_and_plain_provider_keys_are_named_and_no_value_is_read(aws: AnsweringAws, check: Checked) -> None:
    backends = "".join(
        f"    - {{name: {name}, provider: anthropic, api_key_env: {name.upper()}_KEY}}\n" for name in ("first", "second", "third")
    )
    stored = {"FIRST_KEY": "SecureString", "THIRD_KEY": "String"}
    aws.answers["DescribeParameters"] = lambda asked: {
        "Parameters": [
            {"Name": f"{asked['ParameterFilters'][0]['Values'][0]}/{name}", "Type": kind} for name, kind in stored.items()
        ]
    }
    assert check(Built(gateway=Built().gateway + f"llm:\n  backends:\n{backends}")) == 0  # type: ignore[operator]
    assert "SSM has no parameter /spass/prod/SECOND_KEY." in check.output
    assert "The parameter /spass/prod/THIRD_KEY is not encrypted." in check.output
    assert "FIRST_KEY" not in check.output
    assert [name for name, _ in aws.calls if name.startswith("GetParameter")] == ["GetParameter"]  # that of the bootstrap stack


@pytest.mark.parametrize(
    ("arn", "answer", "problem"),
    [
        (CERTIFICATE, {"Status": "ISSUED", "DomainName": "api.example.com"}, None),
        (CERTIFICATE, {"Status": "ISSUED", "DomainName": "a.b", "SubjectAlternativeNames": ["*.example.com"]}, None),
        (CERTIFICATE, {"Status": "PENDING_VALIDATION", "DomainName": "api.example.com"}, "is PENDING_VALIDATION."),
        (CERTIFICATE, {"Status": "ISSUED", "DomainName": "example.com"}, "is not of api.example.com."),
        (CERTIFICATE, Refusal("ResourceNotFoundException"), "does not exist."),
        (CERTIFICATE.replace(REGION, "us-east-1"), DENIED, f"is of us-east-1, and the API is in {REGION}."),
    ],
)
def test_a_certificate_must_be_issued_in_the_region_for_the_domain(
    aws: AnsweringAws, check: Checked, arn: str, answer: dict[str, Any] | Refusal, problem: str | None
) -> None:
    aws.answers["DescribeCertificate"] = answer if isinstance(answer, Refusal) else {"Certificate": answer}
    domain = resource("AWS::ApiGateway::DomainName", DomainName="api.example.com", RegionalCertificateArn=arn)
    assert check(Built(api={"Api": BODY, "Domain": domain})) == bool(problem)
    assert (f"- error: The certificate {arn} {problem}" in check.output) == bool(problem)


@pytest.mark.parametrize("active", [True, False])
def test_a_budget_needs_its_tag_in_billing(aws: AnsweringAws, check: Checked, active: bool) -> None:
    tag = {"TagKey": "spass:environment", "Type": "UserDefined", "Status": "Active" if active else "Inactive"}
    aws.answers["ListCostAllocationTags"] = lambda asked: {
        "CostAllocationTags": [tag] if asked["Status"] == tag["Status"] and tag["TagKey"] in asked["TagKeys"] else []
    }
    filters = {"TagKeyValue": ["user:spass:environment$prod"]}
    assert check(Built(api={"Api": BODY, "Budget": resource("AWS::Budgets::Budget", Budget={"CostFilters": filters})})) == 0
    assert ("The tag spass:environment is not active in billing." in check.output) == (not active)


@pytest.mark.parametrize("status", ["ACTIVE", "PENDING"])
def test_spans_for_xray_need_transaction_search(aws: AnsweringAws, check: Checked, status: str) -> None:
    aws.answers["GetTraceSegmentDestination"] = {"Destination": "CloudWatchLogs", "Status": status}
    check()
    assert "GetTraceSegmentDestination" not in [name for name, _ in aws.calls]
    assert check(Built(nested={"A": function(SPASS_TRACES_SIGN="xray")})) == 0
    assert (f"Transaction Search is not active in {REGION}." in check.output) == (status == "PENDING")


@pytest.mark.parametrize(
    ("stored", "said"),
    [(None, "SSM has no parameter /otel/headers."), ("String", "The parameter /otel/headers is not encrypted.")],
)
def test_the_headers_of_traces_are_looked_for_by_name(aws: AnsweringAws, check: Checked, stored: str | None, said: str) -> None:
    def find(kind: str | None) -> int:
        aws.answers["DescribeParameters"] = lambda asked: {
            "Parameters": [{"Name": value, "Type": kind} for value in asked["ParameterFilters"][0]["Values"] if kind]
        }
        return check(Built(variables={"SPASS_TRACES_HEADERS_PARAMETER": "/otel/headers"}))

    assert find(stored) == 0
    assert said in check.output
    assert find("SecureString") == 0
    assert "/otel/headers" not in check.output


def test_settings_of_aws_backup_that_stop_copies_are_named(aws: AnsweringAws, check: Checked) -> None:
    aws.answers["DescribeRegionSettings"] = {
        "ResourceTypeOptInPreference": {"DynamoDB": True, "S3": False},
        "ResourceTypeManagementPreference": {"DynamoDB": False},
    }
    assert check(Built(data={"Plan": resource("AWS::Backup::BackupPlan")})) == 0
    assert f"AWS Backup is not opted in to S3 in {REGION}." in check.output
    assert "has no advanced features for DynamoDB" in check.output


@pytest.mark.parametrize(("left", "deployed", "status"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_a_vault_that_outlived_its_stack_is_named(
    aws: AnsweringAws, check: Checked, left: bool, deployed: bool, status: int
) -> None:
    vault = {"Vault": resource("AWS::Backup::BackupVault", BackupVaultName="spass-prod")}
    aws.answers["ListBackupVaults"] = {"BackupVaultList": [{"BackupVaultName": "spass-prod"}] if left else []}
    if deployed:
        aws.has(vault, stack=COPIES)
    assert check(Built(copies=vault)) == status
    assert (f"eu-west-1 has a vault spass-prod, which {COPIES} does not have." in check.output) == bool(status)


def test_what_may_not_be_read_is_said(aws: AnsweringAws, check: Checked) -> None:
    aws.answers["GetAccount"] = DENIED
    assert check(Built(api={"Api": BODY, "Account": resource("AWS::ApiGateway::Account")})) == 0
    assert "- warning: Not checked: API Gateway's logging role.\n    AWS answered GetAccount with AccessDenied." in check.output
    aws.answers["GetTemplate"] = DENIED
    aws.account.forget()
    assert check() == 1
    assert "- error: Not checked: the deployed API.\n    AWS answered GetTemplate with AccessDenied." in check.output


def test_a_missing_assembly_is_named_with_the_command_that_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert operate.main(["check", "--env", "prod", "--assembly", str(tmp_path)]) == 1
    assert f"{tmp_path} has no stack {STACK}. Synthesise the environment first: make synth" in capsys.readouterr().out


def test_credentials_that_aws_does_not_know_are_named(check: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = AnsweringAws()
    monkeypatch.setattr("boto3.Session", lambda **_: aws.account.session)
    aws.answers["GetCallerIdentity"] = Refusal("InvalidClientTokenId")
    assert check() == 1
    assert f"The credentials are not valid in {REGION}: they may have expired, or the account has not enabled" in check.output
    aws.answers["GetCallerIdentity"] = Refusal("AccessDenied")
    assert check() == 1
    assert "AWS did not name the account of the credentials: An error occurred (AccessDenied)" in check.output


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            EndpointConnectionError(endpoint_url="https://sts"),
            "AWS did not name the account of the credentials: Could not connect",
        ),
        (NoCredentialsError(), "There are no AWS credentials. Sign in, and set AWS_PROFILE"),
    ],
)
def test_an_account_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    class Unreachable:
        def client(self, _: str) -> None:
            raise error

    monkeypatch.setattr("boto3.Session", lambda **_: Unreachable())
    with pytest.raises(AccountUnreadable, match=said):
        Account.of_region(REGION)
