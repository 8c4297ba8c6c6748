"""Corrections of the emulator ministack 1.5.33, applied in its process.

Each entry of ``CORRECTIONS`` replaces something of ministack that a deployment of the gateway needs.
`infra.rehearsal.differences` says why, and a test of each fails when the emulator does it by itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from uuid import uuid4

from ministack.services import apigateway_v1, ec2  # type: ignore[import-untyped]
from ministack.services import cloudformation as stacks
from ministack.services.cloudformation import provisioners  # type: ignore[import-untyped]

Json: TypeAlias = Any
Properties: TypeAlias = Mapping[str, Any]
Created: TypeAlias = tuple[str, dict[str, Any]]

_ANY: Final = "x-amazon-apigateway-any-method"
_INTEGRATION: Final = "x-amazon-apigateway-integration"
_REFUSALS: Final = "x-amazon-apigateway-gateway-responses"


def add_network_acls() -> None:
    """Add the types of a network ACL and of its subnets, which the sandbox's network needs."""

    def create_acl(_logical_id: str, properties: Properties, _stack: str) -> Created:
        name = f"acl-{uuid4().hex[:17]}"
        ec2._network_acls[name] = {
            "NetworkAclId": name,
            "VpcId": properties["VpcId"],
            "IsDefault": False,
            "Entries": [],
            "Associations": [],
            "Tags": [*properties.get("Tags", [])],
            "OwnerId": provisioners.get_account_id(),
        }
        return name, {"Id": name}

    def delete_acl(physical_id: str, _properties: Properties) -> None:
        ec2._network_acls.pop(physical_id, None)

    def associate(_logical_id: str, properties: Properties, _stack: str) -> Created:
        name = f"aclassoc-{uuid4().hex[:17]}"
        association = {"NetworkAclAssociationId": name, "SubnetId": properties["SubnetId"]}
        ec2._network_acls[properties["NetworkAclId"]]["Associations"].append(association)
        return name, {"AssociationId": name}

    def dissociate(physical_id: str, _properties: Properties) -> None:
        for acl in ec2._network_acls.values():
            acl["Associations"] = [one for one in acl["Associations"] if one["NetworkAclAssociationId"] != physical_id]

    def update_acl(physical_id: str, _old: Properties, new: Properties, _stack: str) -> Created:
        ec2._network_acls[physical_id]["Tags"] = [*new.get("Tags", [])]
        return physical_id, {"Id": physical_id}

    provisioners._RESOURCE_HANDLERS["AWS::EC2::NetworkAcl"] = {"create": create_acl, "update": update_acl, "delete": delete_acl}
    provisioners._RESOURCE_HANDLERS["AWS::EC2::SubnetNetworkAclAssociation"] = {"create": associate, "delete": dissociate}


def add_query_definitions() -> None:
    """Add the type of a saved query of the logs. The emulator has none, so nothing is kept."""

    def create(_logical_id: str, _properties: Properties, _stack: str) -> Created:
        name = str(uuid4())
        return name, {"QueryDefinitionId": name}

    def update(physical_id: str, _old: Properties, _new: Properties, _stack: str) -> Created:
        return physical_id, {"QueryDefinitionId": physical_id}

    def delete(_physical_id: str, _properties: Properties) -> None:
        pass

    provisioners._RESOURCE_HANDLERS["AWS::Logs::QueryDefinition"] = {"create": create, "update": update, "delete": delete}


def keep_attributes_in_nested_stacks() -> None:
    """Keep the attributes of the unchanged resources of a nested stack, which its update forgets."""
    update: Callable[..., Created] = provisioners._update_resource

    def update_resource(kind: str, name: str, old: Properties, new: Properties, stack: str, logical_id: str) -> Created:
        physical_id, attributes = update(kind, name, old, new, stack, logical_id)
        if attributes:
            return physical_id, attributes
        known = ((stacks._stacks.get(stack) or {}).get("_resources") or {}).get(logical_id) or {}
        is_same = known.get("PhysicalResourceId") == physical_id
        return physical_id, (known.get("Attributes") or {}) if is_same else attributes

    provisioners._update_resource = update_resource


def import_whole_bodies() -> None:
    """Import all of an API's body: the answers to other methods, mocks, time limits and refusals.

    The emulator's own import keeps the method, the type and the address of an integration.
    """
    apigateway_v1._OPENAPI_HTTP_METHODS.add(_ANY)
    import_body: Callable[..., str] = apigateway_v1._import_rest_api

    def import_operation(api: str, resource: str, method: str, operation: Json, *_security: object) -> None:
        verb = "ANY" if method.lower() == _ANY else method
        apigateway_v1._put_method(api, resource, verb, {"authorizationType": "NONE"})
        integration = operation[_INTEGRATION]
        capitals = {name: integration[name].upper() for name in ("type", "passthroughBehavior") if name in integration}
        apigateway_v1._put_integration(api, resource, verb, integration | capitals)
        for answer in integration.get("responses", {}).values():
            status = answer["statusCode"]
            apigateway_v1._put_method_response(api, resource, verb, status, {})
            apigateway_v1._put_integration_response(api, resource, verb, status, answer)

    def import_rest_api(body: Json, *settings: object) -> str:
        api = import_body(body, *settings)
        _put_refusals(api, body)
        return api

    apigateway_v1._import_operation = import_operation
    apigateway_v1._import_rest_api = import_rest_api


def answer_mocks_with_request_ids() -> None:
    """Put the request's id into the answer of a mock, whose template the emulator sends as it is."""
    answer: Callable[[Json], tuple[int, dict[str, str], bytes]] = apigateway_v1._invoke_mock_v1

    def invoke_mock(integration: Json) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = answer(integration)
        name = str(uuid4())
        named = {header: name if value == "context.requestId" else value for header, value in headers.items()}
        return status, named, body.replace(b"$context.requestId", name.encode())

    apigateway_v1._invoke_mock_v1 = invoke_mock


def overwrite_bodies_in_place() -> None:
    """Import a changed body into the API that there is. The emulator would make another API, with another id."""
    handler = provisioners._RESOURCE_HANDLERS["AWS::ApiGateway::RestApi"]
    update: Callable[..., Created] = handler["update"]

    def update_rest_api(api: str, old: Properties, new: Properties, *names: str) -> Created:
        if new.get("Body") and old.get("Body") != new["Body"]:
            resources = apigateway_v1._resources[api]
            root = next(name for name, one in resources.items() if one["path"] == "/")
            apigateway_v1._resources[api] = {root: resources[root] | {"resourceMethods": {}}}
            apigateway_v1._gateway_responses.pop(api, None)
            for path, item in new["Body"]["paths"].items():
                apigateway_v1._import_path_item(api, path, item)
            _put_refusals(api, new["Body"])
        return update(api, {**old, "Body": new.get("Body")}, new, *names)

    provisioners._RESOURCE_HANDLERS["AWS::ApiGateway::RestApi"] = {**handler, "update": update_rest_api}


def _put_refusals(api: str, body: Json) -> None:
    for kind, refusal in body.get(_REFUSALS, {}).items():
        apigateway_v1._put_gateway_response(api, kind, refusal)


CORRECTIONS: Final[tuple[Callable[[], None], ...]] = (
    add_network_acls,
    add_query_definitions,
    keep_attributes_in_nested_stacks,
    import_whole_bodies,
    answer_mocks_with_request_ids,
    overwrite_bodies_in_place,
)
