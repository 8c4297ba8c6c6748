"""Read the resources of an AWS account. Nothing here changes it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import boto3
from botocore.client import BaseClient
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from operate.assembly import Template

Answer: TypeAlias = dict[str, Any]

_INVALID: Final = frozenset({"InvalidClientTokenId", "UnrecognizedClientException", "ExpiredToken", "ExpiredTokenException"})


class AccountUnreadable(Exception):
    """AWS does not name the account of the credentials."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account and region, seen with the credentials of the operator."""

    number: str
    region: str
    session: boto3.Session
    _deployed: dict[str, tuple[Template, ...]] = field(default_factory=dict)

    @classmethod
    def of_region(cls, region: str) -> "Account":
        """Return the account of the credentials.

        Raises:
            AccountUnreadable: there are no credentials, they are not valid in this region, or AWS cannot be reached.
        """
        try:
            session = boto3.Session(region_name=region)
            return cls(session.client("sts").get_caller_identity()["Account"], region, session)
        except ClientError as error:
            if error.response["Error"]["Code"] in _INVALID:
                reason = "they may have expired, or the account has not enabled the region"
                raise AccountUnreadable(f"The credentials are not valid in {region}: {reason}. {error}") from None
            raise AccountUnreadable(f"AWS did not name the account of the credentials: {error}") from None
        except NoCredentialsError:
            raise AccountUnreadable(
                "There are no AWS credentials. Sign in, and set AWS_PROFILE or another source of credentials."
            ) from None
        except BotoCoreError as error:
            raise AccountUnreadable(f"AWS did not name the account of the credentials: {error}") from None

    def call(
        self, service: str, operation: str, parameters: Mapping[str, object] | None = None, region: str | None = None
    ) -> Answer:
        """Return what AWS answers to one call, in this region or in another one."""
        answer: Answer = getattr(self._client(service, region), operation)(**parameters or {})
        return answer

    def items(
        self, service: str, operation: str, key: str, parameters: Mapping[str, object] | None = None, region: str | None = None
    ) -> Iterator[Answer]:
        """Yield the items under ``key`` of all pages that AWS answers."""
        for page in self._client(service, region).get_paginator(operation).paginate(**parameters or {}):
            yield from page[key]

    def deployed(self, stack: str, region: str | None = None) -> tuple[Template, ...]:
        """Return the deployed templates of a stack and of its nested stacks, or nothing if there is no such stack."""
        if stack not in self._deployed:
            self._deployed[stack] = tuple(self._templates(stack, region))
        return self._deployed[stack]

    def outputs(self, stack: str) -> dict[str, str] | None:
        """Return the outputs of a deployed stack, or None if there is no such stack."""
        try:
            (found,) = self.call("cloudformation", "describe_stacks", {"StackName": stack})["Stacks"]
        except ClientError as error:
            if _is_missing_stack(error):
                return None
            raise
        return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", ())}

    def forget(self) -> None:
        """Read the templates again, because a deployment has changed them."""
        self._deployed.clear()

    def parameter(self, name: str, region: str | None = None) -> str | None:
        """Return the value of an SSM parameter, or None if there is no such parameter."""
        try:
            return str(self.call("ssm", "get_parameter", {"Name": name}, region)["Parameter"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                return None
            raise

    def _templates(self, stack: str, region: str | None) -> Iterator[Template]:
        try:
            body: str | Template = self.call("cloudformation", "get_template", {"StackName": stack}, region)["TemplateBody"]
        except ClientError as error:
            if _is_missing_stack(error):
                return
            raise
        yield json.loads(body) if isinstance(body, str) else body
        summaries = self.items("cloudformation", "list_stack_resources", "StackResourceSummaries", {"StackName": stack}, region)
        for resource in summaries:
            is_stack = resource["ResourceType"] == "AWS::CloudFormation::Stack" and "PhysicalResourceId" in resource
            if is_stack and resource["ResourceStatus"] != "DELETE_COMPLETE":
                yield from self._templates(resource["PhysicalResourceId"], region)

    def _client(self, service: str, region: str | None) -> BaseClient:
        make = cast(Callable[..., BaseClient], self.session.client)  # its overloads know the services with stubs only
        return make(service, region_name=region or self.region)


def _is_missing_stack(error: ClientError) -> bool:
    return "does not exist" in error.response["Error"]["Message"]  # the code is that of every invalid request
