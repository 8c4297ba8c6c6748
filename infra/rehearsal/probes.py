"""Ask the running emulator whether a difference from AWS is still one."""

from collections.abc import Callable, Mapping
from typing import Final

import boto3
import httpx
from botocore.exceptions import ClientError

from infra.rehearsal.emulator import REGION
from infra.rehearsal.processes import RehearsalFailed
from infra.rehearsal.rehearsal import API_STACK, Json, Rehearsal


def _permissions(rehearsal: Rehearsal) -> bool:
    """Return whether the role of a function may do what no policy allows it."""
    roles = [one for page in rehearsal.client("iam").get_paginator("list_roles").paginate() for one in page["Roles"]]
    role = next(one["Arn"] for one in roles if one["RoleName"].startswith(API_STACK))
    lent = rehearsal.client("sts").assume_role(RoleArn=role, RoleSessionName="probe")["Credentials"]
    session = boto3.Session(lent["AccessKeyId"], lent["SecretAccessKey"], lent["SessionToken"], REGION)
    client: Json = session.client("dynamodb", endpoint_url=rehearsal.emulator.endpoint)
    try:
        client.list_tables()
    except ClientError:
        return False
    return True


def _deployments_of_the_api(rehearsal: Rehearsal) -> bool:
    """Return whether a new path answers before the API is deployed."""
    api = rehearsal.url.split("/")[-2]
    client = rehearsal.client("apigateway")
    root = next(one["id"] for one in client.get_resources(restApiId=api, limit=500)["items"] if one["path"] == "/")
    made = client.create_resource(restApiId=api, parentId=root, pathPart="probe")["id"]
    client.put_method(restApiId=api, resourceId=made, httpMethod="GET", authorizationType="NONE")
    client.put_integration(restApiId=api, resourceId=made, httpMethod="GET", type="MOCK")
    status = httpx.get(f"{rehearsal.url}/probe", timeout=30, trust_env=False).status_code
    client.delete_resource(restApiId=api, resourceId=made)
    return status == httpx.codes.OK


PROBES: Final[Mapping[str, Callable[[Rehearsal], bool]]] = {
    "permissions": _permissions,
    "deployments of the API": _deployments_of_the_api,
}
"""By the name of the difference."""


def differences(rehearsal: Rehearsal) -> str:
    """Run all probes.

    Raises:
        RehearsalFailed: a difference is none any more.
    """
    if gone := [name for name, is_different in PROBES.items() if not is_different(rehearsal)]:
        raise RehearsalFailed(f"No longer a difference: {', '.join(gone)}. Remove it from infra/rehearsal/differences.py.")
    return f"{len(PROBES)} probes: still there"
