"""Each correction of the emulator adds what ministack lacks. A test fails when ministack has it, so that the correction goes."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest
from ministack.services import apigateway_v1, ec2  # type: ignore[import-untyped]
from ministack.services import cloudformation as stacks
from ministack.services.cloudformation import provisioners  # type: ignore[import-untyped]

from infra.openapi_body import openapi_body
from infra.rehearsal import corrections
from infra.routes import ROUTES

BODY: dict[str, Any] = json.loads(
    json.dumps(openapi_body(title="t", description="d", routes=ROUTES, uri=lambda route: f"uri:{route.module}", tls="TLS"))
)
REPLACED = {
    apigateway_v1: ("_import_operation", "_import_rest_api", "_invoke_mock_v1", "_OPENAPI_HTTP_METHODS"),
    provisioners: ("_RESOURCE_HANDLERS", "_update_resource"),
}


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a correction replaces."""
    for module, names in REPLACED.items():
        for name in names:
            value = getattr(module, name)
            monkeypatch.setattr(module, name, value.copy() if isinstance(value, (dict, set)) else value)
    yield
    for store in (apigateway_v1._rest_apis, apigateway_v1._resources, ec2._network_acls, stacks._stacks):
        store.clear()


def methods(api: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the integration of each method of the API by method and path."""
    return {
        (method, resource["path"]): one["methodIntegration"]
        for resource in apigateway_v1._resources[api].values()
        for method, one in resource["resourceMethods"].items()
    }


def expected_methods() -> set[tuple[str, str]]:
    any_method = "x-amazon-apigateway-any-method"
    verbs = {(verb, path) for path, item in BODY["paths"].items() for verb in item if verb != "parameters"}
    return {("ANY" if verb == any_method else verb.upper(), path) for verb, path in verbs}


@pytest.mark.parametrize("kind", ["AWS::EC2::NetworkAcl", "AWS::EC2::SubnetNetworkAclAssociation", "AWS::Logs::QueryDefinition"])
def test_the_emulator_alone_does_not_know_a_type(kind: str) -> None:
    with pytest.raises(ValueError, match="Unsupported resource type"):
        provisioners._provision_resource(kind, "Id", {"VpcId": "vpc-1"}, "stack")


def test_a_network_acl_has_its_subnets_until_they_are_removed() -> None:
    corrections.add_network_acls()
    acl, attributes = provisioners._provision_resource("AWS::EC2::NetworkAcl", "Acl", {"VpcId": "vpc-1"}, "stack")
    assert attributes == {"Id": acl}
    kind = "AWS::EC2::SubnetNetworkAclAssociation"
    link, _ = provisioners._provision_resource(kind, "Link", {"SubnetId": "subnet-1", "NetworkAclId": acl}, "stack")
    assert b"subnet-1" in ec2._describe_network_acls({})[2]
    provisioners._delete_resource(kind, link, {})
    assert b"subnet-1" not in ec2._describe_network_acls({})[2]
    provisioners._delete_resource("AWS::EC2::NetworkAcl", acl, {})
    assert acl.encode() not in ec2._describe_network_acls({})[2]


def test_a_saved_query_keeps_its_id_when_it_changes() -> None:
    corrections.add_query_definitions()
    kind = "AWS::Logs::QueryDefinition"
    query, _ = provisioners._provision_resource(kind, "Query", {"QueryString": "a"}, "stack")
    changed, _ = provisioners._update_resource(kind, query, {"QueryString": "a"}, {"QueryString": "b"}, "stack", "Query")
    assert changed == query
    provisioners._delete_resource(kind, query, {})


def unchanged_attributes() -> dict[str, str]:
    """Return the attributes that the update of a nested stack has of a log group that has not changed."""
    known = {"PhysicalResourceId": "group", "Attributes": {"Arn": "arn:group"}}
    stacks._stacks["nested"] = {"_resources": {"Logs": known}}
    _, attributes = provisioners._update_resource("AWS::Logs::LogGroup", "group", {}, {}, "nested", "Logs")
    return dict(attributes)


def test_the_emulator_alone_forgets_the_attributes_of_a_nested_stack() -> None:
    assert unchanged_attributes() == {}
    assert "old_attrs" not in inspect.getsource(provisioners._cfn_nested_stack_deploy), "a nested stack passes what it knows"


def test_the_update_of_a_nested_stack_keeps_attributes() -> None:
    corrections.keep_attributes_in_nested_stacks()
    assert unchanged_attributes() == {"Arn": "arn:group"}


def test_the_emulator_alone_imports_too_little_of_a_body() -> None:
    imported = methods(apigateway_v1._import_rest_api(BODY))
    assert imported.keys() < expected_methods()
    assert {one["timeoutInMillis"] for one in imported.values()} == {29000}, "it keeps no time limits"


def test_the_whole_body_is_imported() -> None:
    corrections.import_whole_bodies()
    api = apigateway_v1._import_rest_api(BODY)
    imported = methods(api)
    assert imported.keys() == expected_methods()
    assert {one["timeoutInMillis"] for one in imported.values() if one["type"] == "AWS_PROXY"} == {29000, 900000}
    mocks = [one for one in imported.values() if one["type"] == "MOCK"]
    assert mocks
    assert all(one["integrationResponses"] for one in mocks)
    assert apigateway_v1._gateway_responses[api].keys() == BODY["x-amazon-apigateway-gateway-responses"].keys()


def mocked_answer() -> tuple[dict[str, str], dict[str, Any]]:
    """Return the headers and the body of the 405 of ``/healthz``."""
    corrections.import_whole_bodies()
    integration = methods(apigateway_v1._import_rest_api(BODY))["ANY", "/healthz"]
    status, headers, body = apigateway_v1._invoke_mock_v1(integration)
    assert status == 405
    return headers, json.loads(body)


def test_the_emulator_alone_sends_the_template_of_a_mock() -> None:
    headers, body = mocked_answer()
    assert (headers["SPASS-Request-Id"], body["request_id"]) == ("context.requestId", "$context.requestId")


def test_a_mock_answers_with_its_request_id() -> None:
    corrections.answer_mocks_with_request_ids()
    headers, body = mocked_answer()
    assert headers["SPASS-Request-Id"] == body["request_id"] != "$context.requestId"
    assert headers["Allow"] == "GET, HEAD"


def changed_api() -> tuple[str, str]:
    """Return the id of an API before and after its body has one path less."""
    corrections.import_whole_bodies()
    create, update = (provisioners._RESOURCE_HANDLERS["AWS::ApiGateway::RestApi"][name] for name in ("create", "update"))
    paths = {path: item for path, item in BODY["paths"].items() if path != "/healthz"}
    api, _ = create("Api", {"Body": BODY}, "stack")
    changed, _ = update(api, {"Body": BODY}, {"Body": BODY | {"paths": paths}}, "stack")
    return api, changed


def test_the_emulator_alone_makes_another_api_of_a_changed_body() -> None:
    api, changed = changed_api()
    assert changed != api


def test_a_changed_body_is_imported_into_its_api() -> None:
    corrections.overwrite_bodies_in_place()
    api, changed = changed_api()
    assert changed == api
    assert methods(api).keys() == {one for one in expected_methods() if one[1] != "/healthz"}
