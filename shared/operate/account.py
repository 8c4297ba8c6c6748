"""Read what an AWS account has. Nothing here changes it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from botocore.exceptions import ClientError

from operate.assembly import Template

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_ssm import SSMClient


@dataclass(frozen=True, slots=True)
class Account:
    """One account and region, seen with the credentials of the operator."""

    number: str
    stacks: "CloudFormationClient"
    parameters: "SSMClient"

    @classmethod
    def of_region(cls, region: str) -> "Account":
        """Return the account of the credentials."""
        session = boto3.Session(region_name=region)
        number = session.client("sts").get_caller_identity()["Account"]
        return cls(number, session.client("cloudformation"), session.client("ssm"))

    def templates(self, stack: str) -> Iterator[Template]:
        """Yield the deployed templates of a stack and of its nested stacks, or nothing if there is no such stack."""
        try:
            body: str | Template = self.stacks.get_template(StackName=stack)["TemplateBody"]
        except ClientError as error:
            if "does not exist" in error.response["Error"]["Message"]:  # the code is that of every invalid request
                return
            raise
        yield json.loads(body) if isinstance(body, str) else body
        for page in self.stacks.get_paginator("list_stack_resources").paginate(StackName=stack):
            for resource in page["StackResourceSummaries"]:
                is_stack = resource["ResourceType"] == "AWS::CloudFormation::Stack" and "PhysicalResourceId" in resource
                if is_stack and resource["ResourceStatus"] != "DELETE_COMPLETE":
                    yield from self.templates(resource["PhysicalResourceId"])

    def parameter(self, name: str) -> str | None:
        """Return the value of an SSM parameter, or None if there is no such parameter."""
        try:
            return self.parameters.get_parameter(Name=name)["Parameter"]["Value"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                return None
            raise
