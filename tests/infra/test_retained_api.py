"""With ``-c api=retain`` a deployment changes nothing but what happens when a later release leaves the API's objects out."""

import json
from pathlib import Path

from infra.environments import DEV

from .conftest import Deployment, Template, synthesized

OBJECTS = {"AWS::ApiGateway::GatewayResponse", "AWS::ApiGateway::Method", "AWS::ApiGateway::Resource"}


def _comparable(deployment: Deployment, *, without_policies: bool) -> list[Template]:
    """Return the resources of the API stacks. The URL of a nested template has the hash of its content."""
    templates = [json.loads(json.dumps(one["Resources"])) for one in (deployment.api, *deployment.surfaces.values())]
    for resource in (resource for template in templates for resource in template.values()):
        if resource["Type"] == "AWS::CloudFormation::Stack":
            del resource["Properties"]["TemplateURL"]
            resource.pop("Metadata", None)
        if without_policies and resource["Type"] in OBJECTS:
            assert resource.pop("DeletionPolicy") == "Retain"
    return templates


def test_the_switch_retains_every_object_of_the_api_and_changes_nothing_else(dev: Deployment, tmp_path: Path) -> None:
    retained = synthesized([DEV], tmp_path, api="retain")["dev"]
    assert _comparable(retained, without_policies=True) == _comparable(dev, without_policies=False)
