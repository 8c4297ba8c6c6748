"""The permissions to call exactly the Bedrock models that the operator's file names."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from aws_cdk import Stack
from aws_cdk import aws_iam as iam

from infra.config_files import BedrockModel

# The first allows Converse, the second ConverseStream.
# (https://docs.aws.amazon.com/bedrock/latest/userguide/inference-prereq.html)
_ACTIONS: Final = ("bedrock:InvokeModel", "bedrock:InvokeModelWithResponseStream")
# The names of AWS's own profiles begin with a geography: eu.anthropic.claude-…, global.anthropic.claude-….
_OF_A_PROFILE: Final = re.compile(r"(?P<where>[a-z]{2}|us-gov|apac|global)\.(?P<model>[a-z0-9-]+\..+)")
_ARN: Final = re.compile(r"arn:[^:]+:bedrock:[^:]*:[^:]*:(?P<kind>[a-z-]+)/(?P<name>.+)")


class BedrockAccess(NamedTuple):
    """Statements for a role. ``wildcards`` maps each of their resources that contains a wildcard to the reason."""

    statements: list[iam.PolicyStatement]
    wildcards: Mapping[str, str]


def bedrock_access(stack: Stack, models: Iterable[BedrockModel]) -> BedrockAccess:
    """Return the statements that allow these models.

    A profile runs its model in any region of its geography. So the statements allow the model in all regions, but only through
    that profile. (https://docs.aws.amazon.com/bedrock/latest/userguide/inference-profiles-prereq.html)
    """
    direct: list[str] = []
    through: dict[str, list[str]] = {}
    for region, name in models:
        profile, behind = _profile(stack, region or stack.region, name)
        if profile is None:
            direct.append(name if name.startswith("arn:") else _foundation(stack, region or stack.region, name))
        else:
            direct.append(profile)
            # A global profile chooses the region itself, and then the model's ARN has no region.
            through[profile] = [_foundation(stack, "*", behind), _foundation(stack, "", behind)]
    statements = [_allow(direct)] if direct else []
    statements += [_allow(resources, only_through=profile) for profile, resources in through.items()]
    reason = "Bedrock picks the region (or, of a profile of the operator's own, the model) when it is called through the profile."
    return BedrockAccess(statements, {one: reason for resources in through.values() for one in resources if "*" in one})


def _profile(stack: Stack, region: str, name: str) -> tuple[str | None, str]:
    """Return the ARN of the inference profile that ``name`` names, or None, and the id of the model."""
    arn = _ARN.fullmatch(name)
    if arn is not None:
        match arn["kind"]:
            case "application-inference-profile":
                return name, "*"
            case "inference-profile":
                short = _OF_A_PROFILE.fullmatch(arn["name"])
                return name, short["model"] if short else "*"
            case _:
                return None, arn["name"]
    short = _OF_A_PROFILE.fullmatch(name)
    if short is None:
        return None, name
    return stack.format_arn(service="bedrock", region=region, resource="inference-profile", resource_name=name), short["model"]


def _foundation(stack: Stack, region: str, model: str) -> str:
    return f"arn:{stack.partition}:bedrock:{region}::foundation-model/{model}"


def _allow(resources: Iterable[str], *, only_through: str | None = None) -> iam.PolicyStatement:
    conditions = {"ArnEquals": {"bedrock:InferenceProfileArn": only_through}} if only_through else None
    return iam.PolicyStatement(actions=[*_ACTIONS], resources=[*resources], conditions=conditions)
