"""Ways to break the synthesized API, each with the rule that must notice it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from . import api_rules as rules
from .conftest import Deployment, Resource

Break = Callable[[Deployment], object]

_ASK: Final = "/v1/ask"
_USAGE: Final = "/v1/usage"
_ANY: Final = "x-amazon-apigateway-any-method"


def _paths(deployment: Deployment) -> dict[str, Any]:
    paths: dict[str, Any] = deployment.rest_api()["Body"]["paths"]
    return paths


def _integration(deployment: Deployment, path: str, verb: str) -> dict[str, Any]:
    integration: dict[str, Any] = _paths(deployment)[path][verb]["x-amazon-apigateway-integration"]
    return integration


def _answer(deployment: Deployment, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = _integration(deployment, path, _ANY)["responses"]["default"]
    return answer


def _gateway_responses(deployment: Deployment) -> dict[str, Any]:
    responses: dict[str, Any] = deployment.rest_api()["Body"]["x-amazon-apigateway-gateway-responses"]
    return responses


def _permission(deployment: Deployment) -> Resource:
    permission: Resource = next(iter(deployment.permissions["Resources"].values()))["Properties"]
    return permission


def _deployment(deployment: Deployment) -> Resource:
    ((_, found),) = deployment.resources("AWS::ApiGateway::Deployment")
    return found


def _rename(deployment: Deployment, name: str) -> None:
    deployment.api["Resources"][f"{name}2"] = deployment.api["Resources"].pop(name)


def _add(deployment: Deployment, kind: str, count: int = 1) -> None:
    deployment.jobs["Resources"] |= {f"Added{number}": {"Type": kind, "Properties": {}} for number in range(count)}


def _swap_functions(deployment: Deployment) -> None:
    one, other = _integration(deployment, _ASK, "post"), _integration(deployment, "/v1/embeddings", "post")
    one["uri"], other["uri"] = other["uri"], one["uri"]


def _call_plainly(deployment: Deployment) -> None:
    parts = _integration(deployment, _ASK, "post")["uri"]["Fn::Join"][1]
    parts[2], parts[4] = parts[2].replace("2021-11-15", "2015-03-31"), "/invocations"


def _pass_the_api_to_a_surface(deployment: Deployment) -> None:
    nested = next(one for name, one in deployment.resources("AWS::CloudFormation::Stack") if name.startswith("chat"))
    nested["Properties"]["Parameters"]["Api"] = {"Ref": "ApiRest4DEC74FE"}


def _allow_twice(deployment: Deployment) -> None:
    deployment.permissions["Resources"]["Twice"] = {
        "Type": "AWS::Lambda::Permission",
        "Properties": dict(_permission(deployment)),
    }


def _rename_a_variable(deployment: Deployment) -> None:
    paths = _paths(deployment)
    item = paths.pop("/a1/agents/{name}/chat")
    item["parameters"][0]["name"] = "agent"
    paths["/a1/agents/{agent}/chat"] = item


BREAKS: Final[Mapping[rules.Rule, Mapping[str, Break]]] = {
    rules.no_object_of_the_api_is_outside_its_body: {
        "a method": lambda one: _add(one, "AWS::ApiGateway::Method"),
        "a refusal": lambda one: _add(one, "AWS::ApiGateway::GatewayResponse"),
        "a second API": lambda one: _add(one, "AWS::ApiGateway::RestApi"),
    },
    rules.the_api_keeps_its_ids: {
        "another API": lambda one: _rename(one, "ApiRest4DEC74FE"),
        "another stage": lambda one: _rename(one, "ApiRestDeploymentStagedev0D112611"),
        "another setting of the account": lambda one: _rename(one, "ApiRestAccountECB9C6D4"),
    },
    rules.every_row_invokes_its_function: {
        "functions are swapped": _swap_functions,
        "a stream is called plainly": _call_plainly,
        "a long route is buffered": lambda one: _integration(one, _ASK, "post").update(responseTransferMode="BUFFERED"),
        "a long route ends after 29 seconds": lambda one: _integration(one, _ASK, "post").update(timeoutInMillis=29_000),
        "a short route has another time": lambda one: _integration(one, _USAGE, "get").update(timeoutInMillis=28_000),
        "a GET row has no HEAD": lambda one: _paths(one)[_USAGE].pop("head"),
        "a document has no id append": lambda one: _paths(one)["/a1/rag/indices/{index_id}/documents/append"].pop("delete"),
        "a method is missing": lambda one: _paths(one)[_USAGE].pop("delete"),
        "a function is called by GET": lambda one: _integration(one, _USAGE, "get").update(httpMethod="GET"),
        "an event is not a proxy's": lambda one: _integration(one, _USAGE, "get").update(type="aws"),
    },
    rules.every_other_method_is_refused: {
        "a path is missing": lambda one: _paths(one).pop("/v1/rag", None) or _paths(one).pop("/a1/rag"),
        "a path has no ANY": lambda one: _paths(one)[_ASK].pop(_ANY),
        "the rest has no answer": lambda one: _paths(one).pop("/{path+}"),
        "a method too many": lambda one: _paths(one)[_ASK].update(put=_paths(one)[_ASK]["post"]),
        "a method missing in Allow": lambda one: _answer(one, _USAGE)["responseParameters"].update(
            {"method.response.header.Allow": "'GET, HEAD'"}
        ),
        "no Allow": lambda one: _answer(one, _USAGE)["responseParameters"].pop("method.response.header.Allow"),
        "an undeclared header": lambda one: _paths(one)[_USAGE][_ANY]["responses"]["405"]["headers"].pop("Allow"),
        "another status": lambda one: _answer(one, _USAGE).update(statusCode="404"),
        "bytes": lambda one: _answer(one, _USAGE).update(contentHandling="CONVERT_TO_BINARY"),
        "the body as template": lambda one: _integration(one, _USAGE, _ANY).update(passthroughBehavior="when_no_match"),
        "no hint": lambda one: _answer(one, "/messages").update(_answer(one, "/v1/chat")),
    },
    rules.api_gateway_refuses_in_our_envelope: {
        "no Retry-After": lambda one: _gateway_responses(one)["THROTTLED"]["responseParameters"].pop(
            "gatewayresponse.header.Retry-After"
        ),
        "a signature is 403": lambda one: _gateway_responses(one)["INVALID_SIGNATURE"].update(statusCode="403"),
        "no 5XX": lambda one: _gateway_responses(one).pop("DEFAULT_5XX"),
        "its own body": lambda one: _gateway_responses(one)["DEFAULT_4XX"].update(
            responseTemplates=_gateway_responses(one)["DEFAULT_5XX"]["responseTemplates"]
        ),
    },
    rules.an_import_resets_no_setting_of_the_api: {
        "types only in the properties": lambda one: one.rest_api()["Body"].update({"x-amazon-apigateway-binary-media-types": []}),
        "compression only in the body": lambda one: one.rest_api().pop("MinimumCompressionSize"),
        "the generated endpoint is as it was": lambda one: one.rest_api().pop("DisableExecuteApiEndpoint"),
        "an edge API": lambda one: one.rest_api()["Parameters"].update(endpointConfigurationTypes="EDGE"),
        "a merge": lambda one: one.rest_api().update(Mode="merge"),
        "warnings are ignored": lambda one: one.rest_api().update(FailOnWarnings=False),
        "TLS 1.0": lambda one: one.rest_api().update(SecurityPolicy="TLS_1_0"),
        "another name": lambda one: one.rest_api()["Body"]["info"].update(title="spass"),
    },
    rules.variables_of_paths_are_declared: {
        "not declared": lambda one: _paths(one)["/a1/agents/{name}"].pop("parameters"),
        "two names at a place": _rename_a_variable,
    },
    rules.only_this_api_may_invoke_each_function_once: {
        "none": lambda one: one.permissions["Resources"].popitem(),
        "two": _allow_twice,
        "any API": lambda one: _permission(one)["SourceArn"]["Fn::Join"][1].__setitem__(5, "*"),
        "any service": lambda one: _permission(one).update(Principal="*"),
        "any action": lambda one: _permission(one).update(Action="lambda:*"),
    },
    rules.the_deployment_waits_for_the_permissions: {
        "no wait": lambda one: _deployment(one).pop("DependsOn"),
        "another API": lambda one: _deployment(one)["Properties"].update(RestApiId="other"),
    },
    rules.no_surface_knows_the_api: {"a parameter": _pass_the_api_to_a_surface},
    rules.the_templates_are_within_their_limits: {
        "too many resources": lambda one: _add(one, "AWS::Lambda::Alias", rules.MAX_RESOURCES_OF_A_TEMPLATE + 1),
        "too many paths": lambda one: _paths(one).update({f"/added/{number}": {} for number in range(rules.MAX_PATHS)}),
        "too many bytes": lambda one: one.jobs.update(Description="x" * rules.MAX_TEMPLATE_BYTES),
    },
}
