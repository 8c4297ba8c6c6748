"""API Gateway's own error responses use our error envelope."""

import json

import pytest

from infra.routes import BINARY_MEDIA_TYPES
from spass.core import errors

from .conftest import Deployment

EXPECTED = {
    "MISSING_AUTHENTICATION_TOKEN": ("404", "route_not_found"),
    "INVALID_SIGNATURE": ("404", "route_not_found"),
    "EXPIRED_TOKEN": ("404", "route_not_found"),
    "RESOURCE_NOT_FOUND": ("404", "route_not_found"),
    "UNSUPPORTED_MEDIA_TYPE": ("404", "route_not_found"),
    "REQUEST_TOO_LARGE": ("413", "payload_too_large"),
    "THROTTLED": ("429", "rate_limited"),
    "QUOTA_EXCEEDED": ("429", "rate_limited"),
    "INTEGRATION_TIMEOUT": ("504", "upstream_timeout"),
    "INTEGRATION_FAILURE": ("502", "upstream_error"),
    "DEFAULT_5XX": ("502", "upstream_error"),
    "DEFAULT_4XX": ("400", "invalid_request"),
}


def _responses(deployment: Deployment) -> dict[str, dict[str, object]]:
    return {
        response["Properties"]["ResponseType"]: response["Properties"]
        for _, response in deployment.resources("AWS::ApiGateway::GatewayResponse")
    }


def _codes(branch: type[errors.SpassError]) -> set[str]:
    return {branch.code}.union(*(_codes(leaf) for leaf in branch.__subclasses__()))


@pytest.mark.parametrize("kind", EXPECTED)
def test_each_refusal_has_its_status_and_code(dev: Deployment, kind: str) -> None:
    response = _responses(dev)[kind]
    templates = response["ResponseTemplates"]
    assert isinstance(templates, dict)
    body = json.loads(templates["application/json"])
    assert (response["StatusCode"], body["error"]["code"]) == EXPECTED[kind]
    assert set(body) == {"error", "request_id"}
    assert set(body["error"]) == {"code", "message", "type", "param", "details"}


def test_there_is_no_other_refusal(dev: Deployment) -> None:
    assert set(_responses(dev)) == set(EXPECTED)


def test_every_refusal_names_the_request(dev: Deployment) -> None:
    for response in _responses(dev).values():
        parameters = response["ResponseParameters"]
        assert isinstance(parameters, dict)
        assert parameters["gatewayresponse.header.SPASS-Request-Id"] == "context.requestId"
        assert '"request_id": "$context.requestId"' in json.dumps(response["ResponseTemplates"]).replace("\\", "")


@pytest.mark.parametrize("kind", ["THROTTLED", "QUOTA_EXCEEDED"])
def test_a_throttled_request_gets_retry_after(dev: Deployment, kind: str) -> None:
    parameters = _responses(dev)[kind]["ResponseParameters"]
    assert isinstance(parameters, dict)
    assert int(parameters["gatewayresponse.header.Retry-After"].strip("'")) >= 1


def test_bytes_pass_the_api_unchanged_and_its_own_errors_are_always_text(dev: Deployment) -> None:
    ((_, api),) = dev.resources("AWS::ApiGateway::RestApi")
    assert api["Properties"]["BinaryMediaTypes"] == list(BINARY_MEDIA_TYPES)
    for name, method in dev.methods().items():
        integration = method["Properties"]["Integration"]
        if integration["Type"] == "MOCK":
            # A client that accepts a binary type first would otherwise get this JSON decoded as base64, which fails.
            assert [one["ContentHandling"] for one in integration["IntegrationResponses"]] == ["CONVERT_TO_TEXT"], name
        else:
            assert "ContentHandling" not in integration, name


def test_every_code_is_one_of_the_tree_of_errors() -> None:
    assert {code for _, code in EXPECTED.values()} | {"method_not_allowed"} <= _codes(errors.SpassError)
