"""Rules for the synthesized API. Each yields the violations in a deployment, in words."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from infra.routes import BINARY_MEDIA_TYPES, MIN_COMPRESSED_BYTES, NO_SUCH_ROUTE, ROUTE_HINTS, ROUTES

from .conftest import Deployment, function_name

Rule = Callable[[Deployment], Iterator[str]]

MAX_RESOURCES: Final = 520
MAX_RESOURCES_OF_A_TEMPLATE: Final = 250
MAX_TEMPLATE_BYTES: Final = 700_000
MAX_PATHS: Final = 250

REFUSALS: Final = {
    "MISSING_AUTHENTICATION_TOKEN": ("404", "route_not_found"),
    "INVALID_SIGNATURE": ("404", "route_not_found"),
    "EXPIRED_TOKEN": ("404", "route_not_found"),
    "RESOURCE_NOT_FOUND": ("404", "route_not_found"),
    "UNSUPPORTED_MEDIA_TYPE": ("404", "route_not_found"),
    "REQUEST_TOO_LARGE": ("413", "payload_too_large"),
    "THROTTLED": ("429", "rate_limited"),
    "QUOTA_EXCEEDED": ("429", "rate_limited"),
    "WAF_FILTERED": ("429", "rate_limited"),
    "INTEGRATION_TIMEOUT": ("504", "upstream_timeout"),
    "INTEGRATION_FAILURE": ("502", "upstream_error"),
    "DEFAULT_5XX": ("502", "upstream_error"),
    "DEFAULT_4XX": ("400", "invalid_request"),
}

# CloudFormation would replace a resource of another id: the API with its URL, its stage, the setting of the account.
_IDS: Final = {
    "AWS::ApiGateway::RestApi": "ApiRest4DEC74FE",
    "AWS::ApiGateway::Account": "ApiRestAccountECB9C6D4",
}
_STAGES: Final = {
    "dev": "ApiRestDeploymentStagedev0D112611",
    "staging": "ApiRestDeploymentStagestaging1BC7E49A",
    "prod": "ApiRestDeploymentStageprodE136C09A",
}
# A document may have the id "append". API Gateway chooses the fixed path, which therefore answers to the methods of both.
_DOCUMENT: Final = "/a1/rag/indices/{index_id}/documents/{doc_id}"
_APPEND: Final = "/a1/rag/indices/{index_id}/documents/append"
_PATHS: Final = [(route, route.resource) for route in ROUTES] + [
    (route, _APPEND) for route in ROUTES if route.resource == _DOCUMENT
]
_REQUEST_ID: Final = "SPASS-Request-Id"


def _integration(method: dict[str, Any]) -> dict[str, Any]:
    integration: dict[str, Any] = method["x-amazon-apigateway-integration"]
    return integration


def no_object_of_the_api_is_outside_its_body(deployment: Deployment) -> Iterator[str]:
    """Each would be created, changed and deleted by a call of its own, of which AWS takes 5 to 10 a second."""
    found = [one["Type"] for one in _resources(deployment) if one["Type"].startswith("AWS::ApiGateway")]
    allowed = ["AWS::ApiGateway::Account", "AWS::ApiGateway::Deployment", "AWS::ApiGateway::RestApi", "AWS::ApiGateway::Stage"]
    if deployment.environment.domain:
        allowed += ["AWS::ApiGateway::BasePathMapping", "AWS::ApiGateway::DomainName"]
    if sorted(found) != sorted(allowed):
        yield f"the API has {sorted(found)}"


def the_api_keeps_its_ids(deployment: Deployment) -> Iterator[str]:
    for kind, name in {**_IDS, "AWS::ApiGateway::Stage": _STAGES[deployment.environment.name]}.items():
        if name not in deployment.api["Resources"] or deployment.api["Resources"][name]["Type"] != kind:
            yield f"there is no {kind} {name}"


def every_row_invokes_its_function(deployment: Deployment) -> Iterator[str]:
    """A GET row answers to HEAD too. A long row streams for 15 minutes, another one is buffered and has 29 seconds."""
    methods = deployment.methods()
    for route, path in _PATHS:
        for verb in route.methods:
            integration = _integration(methods[verb, path]) if (verb, path) in methods else {}
            version, suffix = ("2021-11-15", "response-streaming-invocations") if route.long else ("2015-03-31", "invocations")
            match integration.get("uri"):
                case {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, start, dict(reference), end]]}:
                    name = function_name(deployment.function_behind(deployment.output(reference)))
                    address = f":apigateway:{deployment.environment.region}:lambda:path/{version}/functions/", f"/{suffix}"
                    if (start, end, name) != (*address, route.function_name):
                        yield f"{verb} {path} invokes {name} at {start}…{end}"
                case other:
                    yield f"{verb} {path} invokes {other}"
            rest = {name: value for name, value in integration.items() if name != "uri"}
            if rest != {
                "type": "aws_proxy",
                "httpMethod": "POST",
                "timeoutInMillis": 900_000 if route.long else 29_000,
                "responseTransferMode": "STREAM" if route.long else "BUFFERED",
            }:
                yield f"{verb} {path} is integrated by {rest}"


def every_other_method_is_refused(deployment: Deployment) -> Iterator[str]:
    """If a method is missing, API Gateway parses the Authorization header as an AWS signature and refuses it as malformed."""
    methods = deployment.methods()
    rows = {(verb, path) for route, path in _PATHS for verb in route.methods}
    named = {path for _, path in rows} | ROUTE_HINTS.keys() | {"/{path+}"}
    above = {path[:end] for path in named for end in range(1, len(path)) if path[end] == "/"}
    if extra := methods.keys() ^ (rows | {("ANY", path) for path in named | above}):
        yield f"more or fewer methods than those of the rows and one ANY for each path: {sorted(extra)}"
    for (verb, path), method in methods.items():
        if verb == "ANY":
            allow = ", ".join(sorted(one for one, row in rows if row == path))
            yield from (f"ANY {path}: {violation}" for violation in _refusal(method, path, allow))


def _refusal(method: dict[str, Any], path: str, allow: str) -> Iterator[str]:
    integration = dict(_integration(method))
    answer = integration.pop("responses")["default"]
    status, code = ("405", "method_not_allowed") if allow else ("404", "route_not_found")
    message = (
        f"This route does not answer to this method. It answers to {allow}." if allow else ROUTE_HINTS.get(path, NO_SUCH_ROUTE)
    )
    headers = {_REQUEST_ID: "context.requestId"} | ({"Allow": f"'{allow}'"} if allow else {})
    if integration != {
        "type": "mock",
        "requestTemplates": {"application/json": json.dumps({"statusCode": int(status)})},
        "passthroughBehavior": "never",
    }:
        yield f"is integrated by {integration}"
    if {name: set(declared["headers"]) for name, declared in method["responses"].items()} != {status: set(headers)}:
        yield f"declares {method['responses']}"
    # A client that accepts a binary type first would otherwise get this JSON decoded as base64, which fails.
    if (answer["statusCode"], answer["contentHandling"]) != (status, "CONVERT_TO_TEXT"):
        yield f"answers {answer['statusCode']}, handled by {answer['contentHandling']}"
    if answer["responseParameters"] != {f"method.response.header.{name}": value for name, value in headers.items()}:
        yield f"sends {answer['responseParameters']}"
    yield from _envelope(answer["responseTemplates"], code, message)


def _envelope(templates: dict[str, str], code: str, message: str | None = None) -> Iterator[str]:
    """Yield the violations of a body that API Gateway sends without a function."""
    (kind, template), *others = templates.items()
    body = json.loads(template)
    error = body["error"]
    if others or kind != "application/json" or set(body) != {"error", "request_id"}:
        yield f"the templates are {templates}"
    if body["request_id"] != "$context.requestId" or set(error) != {"code", "message", "type", "param", "details"}:
        yield f"the body is {body}"
    if error["code"] != code or (message is not None and error["message"] != message):
        yield f"the error is {error}"
    if len(template) >= MIN_COMPRESSED_BYTES:
        yield "the error is large enough to be compressed"


def api_gateway_refuses_in_our_envelope(deployment: Deployment) -> Iterator[str]:
    responses = deployment.rest_api()["Body"]["x-amazon-apigateway-gateway-responses"]
    if responses.keys() != REFUSALS.keys():
        yield f"other refusals than expected: {sorted(responses.keys() ^ REFUSALS.keys())}"
    for kind, response in responses.items():
        status, code = REFUSALS.get(kind, ("", ""))
        headers = {_REQUEST_ID: "context.requestId", "Content-Type": "'application/json'"}
        if status == "429":
            headers["Retry-After"] = "'60'" if kind in ("QUOTA_EXCEEDED", "WAF_FILTERED") else "'1'"
        if response["statusCode"] != status:
            yield f"{kind} has the status {response['statusCode']}"
        if response["responseParameters"] != {f"gatewayresponse.header.{name}": value for name, value in headers.items()}:
            yield f"{kind} sends {response['responseParameters']}"
        yield from (f"{kind}: {violation}" for violation in _envelope(response["responseTemplates"], code))


def an_import_resets_no_setting_of_the_api(deployment: Deployment) -> Iterator[str]:
    """An import overwrites what is only in the body or only in the properties."""
    api, name = deployment.rest_api(), f"spass-{deployment.environment.name}"
    body = api["Body"]
    expected: dict[str, tuple[object, object]] = {
        "Name": (body["info"]["title"], name),
        "Description": (body["info"]["description"], "Spass, a gateway for LLM agents."),
        "BinaryMediaTypes": (body["x-amazon-apigateway-binary-media-types"], list(BINARY_MEDIA_TYPES)),
        "MinimumCompressionSize": (body["x-amazon-apigateway-minimum-compression-size"], MIN_COMPRESSED_BYTES),
        "SecurityPolicy": (body["x-amazon-apigateway-security-policy"], deployment.environment.tls),
        # Also when it is off: an environment that gives up its domain needs the generated endpoint again.
        "DisableExecuteApiEndpoint": (
            body.get("x-amazon-apigateway-endpoint-configuration", {}).get("disableExecuteApiEndpoint"),
            deployment.environment.endpoint_disabled,
        ),
        "EndpointAccessMode": (body["x-amazon-apigateway-endpoint-access-mode"], "STRICT"),
        # OpenAPI has no extension for the type of the endpoint; an import takes it as a parameter.
        "EndpointConfiguration": ({"Types": [api["Parameters"]["endpointConfigurationTypes"]]}, {"Types": ["REGIONAL"]}),
    }
    for setting, (in_body, value) in expected.items():
        if not in_body == value == api.get(setting):
            yield f"{setting} is {api.get(setting)} in the properties and {in_body} in the body"
    if (api["Mode"], api["FailOnWarnings"]) != ("overwrite", True):
        yield f"the body is imported with {api['Mode']} and FailOnWarnings {api['FailOnWarnings']}"


def variables_of_paths_are_declared(deployment: Deployment) -> Iterator[str]:
    """OpenAPI requires it, and a warning fails the import. API Gateway allows only one name of a variable at a place."""
    names: dict[str, set[str]] = {}
    for path, item in deployment.rest_api()["Body"]["paths"].items():
        variables = [segment for segment in path.split("/") if segment.startswith("{")]
        declared = [{"name": one.strip("{}+"), "in": "path", "required": True, "schema": {"type": "string"}} for one in variables]
        if item.get("parameters", []) != declared:
            yield f"{path} declares {item.get('parameters')}"
        segments = path.split("/")
        for depth, segment in enumerate(segments):
            if segment.startswith("{"):
                names.setdefault("/".join(segments[:depth]), set()).add(segment.strip("{}+"))
    yield from (f"{parent} has the variables {sorted(found)}" for parent, found in names.items() if len(found) > 1)


def only_this_api_may_invoke_each_function_once(deployment: Deployment) -> Iterator[str]:
    expected = {route.function_name for route in ROUTES}
    this_api = {"Ref": _IDS["AWS::ApiGateway::RestApi"]}
    invoked: list[str] = []
    for template in deployment.templates():
        for resource in template["Resources"].values():
            if resource["Type"] != "AWS::Lambda::Permission":
                continue
            properties = dict(resource["Properties"])
            target = deployment.output(deployment.argument(properties.pop("FunctionName")["Ref"]))
            invoked.append(function_name(deployment.function_behind(target)))
            match properties.pop("SourceArn")["Fn::Join"][1]:
                case ["arn:", {"Ref": "AWS::Partition"}, region, {"Ref": "AWS::AccountId"}, ":", {"Ref": str(api)}, "/*/*/*"]:
                    if region != f":execute-api:{deployment.environment.region}:" or deployment.argument(api) != this_api:
                        yield f"{invoked[-1]} may be invoked by {api} in {region}"
                case other:
                    yield f"{invoked[-1]} may be invoked by {other}"
            if properties != {"Action": "lambda:InvokeFunction", "Principal": "apigateway.amazonaws.com"}:
                yield f"{invoked[-1]} has the permission {properties}"
    if sorted(invoked) != sorted(expected):
        yield f"these functions have no permission, or two: {sorted(expected ^ set(invoked))}, {sorted(invoked)}"


def the_deployment_waits_for_the_permissions(deployment: Deployment) -> Iterator[str]:
    """It waits for the body, which waits for the surfaces, and a change of the body must replace it."""
    ((_, found),) = deployment.resources("AWS::ApiGateway::Deployment")
    (permissions,) = [name for name, _ in deployment.resources("AWS::CloudFormation::Stack") if name.startswith("permissions")]
    if permissions not in found.get("DependsOn", []):
        yield f"the deployment waits for {found.get('DependsOn')}"
    if found["Properties"]["RestApiId"] != {"Ref": _IDS["AWS::ApiGateway::RestApi"]}:
        yield f"the deployment is of {found['Properties']['RestApiId']}"


def no_surface_knows_the_api(deployment: Deployment) -> Iterator[str]:
    """The body needs the functions of the surfaces, so a reference back would be a circle."""
    for name, nested in deployment.resources("AWS::CloudFormation::Stack"):
        references = {value.get("Ref") for value in nested["Properties"].get("Parameters", {}).values()}
        if "ApiRest" in json.dumps(sorted(map(str, references))) and not name.startswith("permissions"):
            yield f"{name} refers to the API"


def the_templates_are_within_their_limits(deployment: Deployment) -> Iterator[str]:
    templates = deployment.templates()
    if (total := sum(len(template["Resources"]) for template in templates)) > MAX_RESOURCES:
        yield f"the environment has {total} resources"
    if (largest := max(len(template["Resources"]) for template in templates)) > MAX_RESOURCES_OF_A_TEMPLATE:
        yield f"a template has {largest} resources"
    if (size := max(len(json.dumps(template, indent=1)) for template in templates)) > MAX_TEMPLATE_BYTES:
        yield f"a template has {size} bytes"
    if (paths := len(deployment.rest_api()["Body"]["paths"])) > MAX_PATHS:
        yield f"the body has {paths} paths"


def _resources(deployment: Deployment) -> Iterator[dict[str, Any]]:
    for template in deployment.templates():
        yield from template["Resources"].values()


RULES: Final[tuple[Rule, ...]] = (
    no_object_of_the_api_is_outside_its_body,
    the_api_keeps_its_ids,
    every_row_invokes_its_function,
    every_other_method_is_refused,
    api_gateway_refuses_in_our_envelope,
    an_import_resets_no_setting_of_the_api,
    variables_of_paths_are_declared,
    only_this_api_may_invoke_each_function_once,
    the_deployment_waits_for_the_permissions,
    no_surface_knows_the_api,
    the_templates_are_within_their_limits,
)
