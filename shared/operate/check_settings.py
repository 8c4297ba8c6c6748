"""Compare the operator's files, as they are bundled, and the options of the environment with what the account has."""

from collections.abc import Iterator
from typing import Any, Final

from botocore.exceptions import ClientError

from operate.account import Account
from operate.assembly import Assembly, resources, variables
from operate.checkout import read_checkout
from operate.checks import Finding
from spass.models.backends import all_key_variables
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tenancy.yaml_source import ConfigError

_COPIED: Final = ("DynamoDB", "S3")
_VAULT: Final = "AWS::Backup::BackupVault"


def find_other_release(assembly: Assembly, _: Account) -> Iterator[Finding]:
    """Compare the release of the assembly with the checkout."""
    built, checkout = assembly.release, read_checkout()
    if built != checkout.release or checkout.changed:
        yield Finding(
            f"The assembly is of {built}, and the checkout is {checkout.release}.",
            "The assembly is what is deployed, and no commit has changed files, so you could not go back to it.",
            "Commit what is changed, and synthesise again: make synth",
        )


def find_no_tenant(assembly: Assembly, _: Account) -> Iterator[Finding]:
    """Read the tenants of the bundled gateway.yaml."""
    config = _config(assembly)
    if isinstance(config, Finding):
        yield config
    elif not any(tenant.tokens for tenant in config.tenants):
        yield Finding(
            "gateway.yaml has no tenant with a token.",
            "The gateway would refuse every request with 401.",
            "Write a tenant under tenants, with the SHA-256 of its token: see docs/deploying.md",
        )


def find_missing_keys(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Compare the names of the provider keys with those of the parameters. No value is read."""
    config = _config(assembly)
    if isinstance(config, Finding) or not (needed := all_key_variables(config)):
        return
    for path in sorted(variables(assembly.api.templates, "SPASS_KEYS_PATH")):
        filters = [{"Key": "Path", "Option": "OneLevel", "Values": [path.rstrip("/")]}]
        parameters = account.items("ssm", "describe_parameters", "Parameters", {"ParameterFilters": filters})
        stored = {parameter["Name"]: parameter["Type"] for parameter in parameters}
        if missing := [f"{path}{name}" for name in needed if f"{path}{name}" not in stored]:
            yield Finding(
                f"SSM has no parameter {', '.join(missing)}.",
                "Calls of these backends are refused until there is one. Others answer.",
                "Store the keys, or remove the backends: see 'Keys of providers' in docs/deploying.md",
            )
        if plain := [f"{path}{name}" for name in needed if stored.get(f"{path}{name}") not in (None, "SecureString")]:
            yield Finding(
                f"The parameter {', '.join(plain)} is not encrypted.",
                "Everyone who may read parameters sees the key.",
                "Store the key again with the type SecureString.",
            )


def find_unusable_certificate(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Read the certificate of the domain, if there is one."""
    for domain in assembly.resources("AWS::ApiGateway::DomainName"):
        name, arn = domain["DomainName"], domain["RegionalCertificateArn"]
        if problem := _problem_of(account, name, arn, assembly.region):
            yield Finding(
                f"The certificate {arn} {problem}.",
                f"API Gateway refuses the domain {name} without an issued certificate of its own region.",
                f"Request one in ACM in {assembly.region}, validate it, and write its ARN into environments.yaml.",
            )


def find_refused_spans(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Read whether X-Ray takes spans, if the functions send it some."""
    if "xray" not in variables(assembly.api.templates, "SPASS_TRACES_SIGN"):
        return
    found = account.call("xray", "get_trace_segment_destination")
    if (found.get("Destination"), found.get("Status")) != ("CloudWatchLogs", "ACTIVE"):
        yield Finding(
            f"Transaction Search is not active in {assembly.region}.",
            "X-Ray refuses spans over OTLP without it. The log then has spans_not_sent, and requests are as they are.",
            "Switch it on in CloudWatch, under Application Signals, or remove traces from environments.yaml.",
        )


def find_inactive_tag(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Read whether billing knows the tag of the budget."""
    tags = {
        tag.partition("$")[0].removeprefix("user:")
        for budget in assembly.resources("AWS::Budgets::Budget")
        for tag in budget["Budget"].get("CostFilters", {}).get("TagKeyValue", [])
    }
    if not tags:
        return
    active = {"TagKeys": sorted(tags), "Status": "Active"}
    found = account.call("ce", "list_cost_allocation_tags", active)["CostAllocationTags"]
    for tag in sorted(tags - {one["TagKey"] for one in found}):
        yield Finding(
            f"The tag {tag} is not active in billing.",
            "The budget would count nothing and never write.",
            "In Billing, 'Cost allocation tags', activate it. A tag appears there a day after the first deployment.",
        )


def find_missing_headers(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Look for the parameter with the headers of the endpoint of traces. Its value is not read."""
    for name in sorted(variables(assembly.api.templates, "SPASS_TRACES_HEADERS_PARAMETER")):
        named = [{"Key": "Name", "Option": "Equals", "Values": [name]}]
        types = [one["Type"] for one in account.items("ssm", "describe_parameters", "Parameters", {"ParameterFilters": named})]
        if types != ["SecureString"]:
            yield Finding(
                f"The parameter {name} is not encrypted." if types else f"SSM has no parameter {name}.",
                "It has the headers of the endpoint of traces, which are secret, and without which it refuses spans.",
                "Store it with the type SecureString: see docs/traces.md",
            )


def find_disabled_copies(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Read whether AWS Backup may copy tables and buckets, if there is a plan."""
    if not [*assembly.resources("AWS::Backup::BackupPlan")]:
        return
    settings = account.call("backup", "describe_region_settings")
    if off := [kind for kind in _COPIED if not settings["ResourceTypeOptInPreference"].get(kind)]:
        yield Finding(
            f"AWS Backup is not opted in to {' and '.join(off)} in {assembly.region}.",
            "Restores and other plans need it. AWS documents that this plan copies without it.",
            "In AWS Backup, 'Settings', 'Service opt-in', enable them.",
        )
    if not settings["ResourceTypeManagementPreference"].get("DynamoDB"):
        yield Finding(
            f"AWS Backup has no advanced features for DynamoDB in {assembly.region}.",
            "Without them a table cannot be copied to another region.",
            "In AWS Backup, 'Settings', enable 'Advanced features for DynamoDB backups'.",
        )


def find_left_vaults(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Look for vaults of the names that the deployment would create: a vault outlives its stack."""
    for stack in assembly.stacks:
        if not (wanted := _vaults(stack.resources(_VAULT))):
            continue
        created = wanted - _vaults(resources(account.deployed(stack.name, stack.region), _VAULT))
        found = account.items("backup", "list_backup_vaults", "BackupVaultList", region=stack.region)
        for name in sorted(created & {vault["BackupVaultName"] for vault in found}):
            yield Finding(
                f"{stack.region} has a vault {name}, which {stack.name} does not have.",
                "CloudFormation cannot create a vault whose name is taken.",
                f"Import it: make cdk ARGS='import {stack.name}', or remove it if it is empty.",
            )


def _vaults(found: Iterator[dict[str, Any]]) -> set[str]:
    return {vault["BackupVaultName"] for vault in found}


def _config(assembly: Assembly) -> GatewayConfig | Finding:
    """Return the bundled gateway.yaml, or why it cannot be read."""
    file = assembly.file("SPASS_CONFIG")
    remedy = "Synthesise again, with bundles: make synth"
    if file is None:
        return Finding("The assembly has no gateway.yaml.", "Without it no function can start.", remedy)
    try:
        return load_gateway_config(file)
    except ConfigError as error:
        return Finding(f"The bundled gateway.yaml is not valid: {error}", "No function could start.", remedy)


def _problem_of(account: Account, domain: str, arn: str, region: str) -> str | None:
    if (other := arn.split(":")[3]) != region:
        return f"is of {other}, and the API is in {region}"
    try:
        certificate = account.call("acm", "describe_certificate", {"CertificateArn": arn})["Certificate"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            return "does not exist"
        raise
    if certificate["Status"] != "ISSUED":
        return f"is {certificate['Status']}"
    wildcard = f"*.{domain.partition('.')[2]}"
    if {domain, wildcard}.isdisjoint({certificate["DomainName"], *certificate.get("SubjectAlternativeNames", [])}):
        return f"is not of {domain}"
    return None
