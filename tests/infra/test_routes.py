"""Test that API Gateway has a method with a function for every row of ROUTES, and refuses all other requests."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.environments import DEV, Environment
from infra.routes import MIN_COMPRESSED_BYTES, NO_SUCH_ROUTE, ROUTE_HINTS, ROUTES, Permission, Route, Surface
from infra.workers import WORKERS, Worker

from .conftest import Deployment, function_name

ROWS: list[Route | Worker] = [*ROUTES, *WORKERS]
MAX_LAYERS = 5  # of a function, in Lambda
NAMES = [f"{route.method} {route.path}" for route in ROUTES]


def _assert_invocable(deployment: Deployment, route: Route, method: str) -> None:
    """Check that API Gateway calls the function of this row, and has exactly one permission to call it."""
    partition, region = {"Ref": "AWS::Partition"}, deployment.environment.region
    uri = deployment.methods()[method, route.resource]["Properties"]["Integration"]["Uri"]["Fn::Join"][1]
    version, verb = ("2021-11-15", "response-streaming-invocations") if route.long else ("2015-03-31", "invocations")
    function_arn = uri[3]
    assert uri == ["arn:", partition, f":apigateway:{region}:lambda:path/{version}/functions/", function_arn, f"/{verb}"]
    assert function_name(deployment.function_behind(function_arn)) == route.function_name

    path = "/".join("*" if part.startswith("{") else part for part in route.path.split("/"))
    permissions = [permission["Properties"] for _, permission in deployment.resources("AWS::Lambda::Permission")]
    (permission,) = [one for one in permissions if one["SourceArn"]["Fn::Join"][1][-1] == f"/*/{method}{path}"]
    source = permission["SourceArn"]["Fn::Join"][1]
    ((api, _),) = deployment.resources("AWS::ApiGateway::RestApi")
    # source[5] is a parameter of the nested stack. The parent passes the id of the API.
    assert deployment.argument(source[5]["Ref"]) == {"Ref": api}
    assert source[:5] == ["arn:", partition, f":execute-api:{region}:", {"Ref": "AWS::AccountId"}, ":"]
    assert permission == {
        "Action": "lambda:InvokeFunction",
        "FunctionName": function_arn,
        "Principal": "apigateway.amazonaws.com",
        "SourceArn": {"Fn::Join": ["", source]},
    }


@pytest.mark.parametrize("route", ROUTES, ids=NAMES)
def test_every_row_is_a_method_that_may_invoke_its_function(dev: Deployment, route: Route) -> None:
    for method in route.methods:
        _assert_invocable(dev, route, method)
    assert f"{route.method} {route.path}" in dev.functions()[route.function_name]["Description"].removeprefix(
        "Spass dev: "
    ).split(", ")


def test_with_snapshots_every_row_may_invoke_the_alias_of_its_function(extended: Deployment) -> None:
    for route in ROUTES:
        for method in route.methods:
            _assert_invocable(extended, route, method)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.long], ids=lambda route: route.path)
def test_a_long_route_streams_for_up_to_15_minutes_under_the_web_adapter(dev: Deployment, route: Route) -> None:
    integration = dev.methods()[route.method, route.resource]["Properties"]["Integration"]
    assert integration["ResponseTransferMode"] == "STREAM"
    assert integration["TimeoutInMillis"] == 900_000
    assert json.dumps(integration["Uri"]).endswith('/response-streaming-invocations"]]}')
    assert "/2021-11-15/functions/" in json.dumps(integration["Uri"])
    function = dev.functions()[route.function_name]
    variables = function["Environment"]["Variables"]
    assert function["Handler"] == "run.sh"
    assert function["Timeout"] == 900
    assert variables["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/bootstrap"
    assert variables["AWS_LWA_INVOKE_MODE"] == "RESPONSE_STREAM"
    assert variables["AWS_LWA_READINESS_CHECK_PROTOCOL"] == "TCP"
    assert variables["SPASS_APP"] == f"functions.{route.module}:app"


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.long], ids=lambda route: f"{route.method} {route.path}")
def test_a_short_route_answers_buffered_within_29_seconds(dev: Deployment, route: Route) -> None:
    integration = dev.methods()[route.method, route.resource]["Properties"]["Integration"]
    assert integration["ResponseTransferMode"] == "BUFFERED"
    assert integration["TimeoutInMillis"] == 29_000
    function = dev.functions()[route.function_name]
    assert function["Handler"].startswith("functions.")
    assert function["Handler"].endswith(".handler")
    assert function["Timeout"] == 29
    assert "AWS_LAMBDA_EXEC_WRAPPER" not in function["Environment"]["Variables"]


def test_every_function_has_a_row(dev: Deployment) -> None:
    assert set(dev.functions()) == {row.function_name for row in ROWS}


def test_rows_that_share_a_function_are_all_short() -> None:
    names = Counter(route.function_name for route in ROUTES)
    assert not [route.path for route in ROUTES if route.long and (route.function or names[route.function_name] > 1)]


@pytest.mark.parametrize("name", sorted({route.function for route in ROUTES if route.function}))
def test_a_shared_function_serves_all_its_rows(dev: Deployment, name: str) -> None:
    function = dev.functions()[name]
    modules = [f"functions.{route.module}" for route in ROUTES if route.function_name == name]
    assert function["Handler"] == "functions.workers.shared.handler"
    assert function["Environment"]["Variables"]["SPASS_ROUTES"].split(",") == modules


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if not route.function and not route.long], ids=lambda one: one.module
)
def test_a_function_of_one_short_row_has_its_modules_handler(dev: Deployment, route: Route) -> None:
    assert dev.functions()[route.function_name]["Handler"] == f"functions.{route.module}.handler"


def test_methods_without_a_row_are_refused_with_our_error_envelope(dev: Deployment) -> None:
    routes = {(method, route.resource) for route in ROUTES for method in route.methods}
    paths = {route.resource for route in ROUTES}
    for (method, path), resource in dev.methods().items():
        if (method, path) in routes:
            continue
        assert method == "ANY"
        integration = resource["Properties"]["Integration"]
        (answer,) = integration["IntegrationResponses"]
        body = json.loads(answer["ResponseTemplates"]["application/json"])
        assert integration["Type"] == "MOCK"
        assert body["request_id"] == "$context.requestId"
        assert answer["ResponseParameters"]["method.response.header.SPASS-Request-Id"] == "context.requestId"
        if path in paths:
            allowed = ", ".join(sorted(method_name for method_name, route_path in routes if route_path == path))
            assert (answer["StatusCode"], body["error"]["code"]) == ("405", "method_not_allowed")
            assert answer["ResponseParameters"]["method.response.header.Allow"] == f"'{allowed}'"
            assert body["error"]["message"] == f"This route does not answer to this method. It answers to {allowed}."
        else:
            assert (answer["StatusCode"], body["error"]["code"]) == ("404", "route_not_found")
            assert body["error"]["type"] == "not_found_error"
            assert body["error"]["message"] == ROUTE_HINTS.get(path, NO_SUCH_ROUTE)
        assert json.loads(integration["RequestTemplates"]["application/json"]) == {"statusCode": int(answer["StatusCode"])}


def test_every_path_of_the_api_has_an_answer_for_every_method(dev: Deployment) -> None:
    """If a method is missing, API Gateway parses the Authorization header as an AWS signature and refuses it as malformed."""
    paths_with_any = {path for verb, path in dev.methods() if verb == "ANY"}
    assert {"/", "/{path+}", "/v1", "/a1", "/a1/rag", "/v1/chat", "/c1", "/c1/agents"} <= paths_with_any
    assert {path for _, path in dev.methods()} == paths_with_any


def test_the_refused_methods_of_the_root_are_in_the_stack_of_the_api(dev: Deployment) -> None:
    """CloudFormation would create a method of a nested stack before it deletes the one of an earlier release."""
    root = dev.methods()["ANY", "/"]
    assert root in dev.api["Resources"].values()
    assert {verb for verb, path in dev.methods() if path == "/"} == {"ANY", "GET", "HEAD"}


def test_buffered_answers_are_compressed_from_a_kibibyte_on(dev: Deployment) -> None:
    ((_, api),) = dev.resources("AWS::ApiGateway::RestApi")
    assert api["Properties"]["MinimumCompressionSize"] == MIN_COMPRESSED_BYTES == 1024
    largest = [json.dumps(resource["Properties"]) for _, resource in dev.resources("AWS::ApiGateway::GatewayResponse")]
    assert max(map(len, largest)) < MIN_COMPRESSED_BYTES, "API Gateway's own errors are not compressed"


def test_only_the_methods_of_rows_may_invoke_a_function(dev: Deployment) -> None:
    assert len(list(dev.resources("AWS::Lambda::Permission"))) == sum(len(route.methods) for route in ROUTES)


def test_head_is_a_method_of_every_get_route_with_the_same_function(dev: Deployment) -> None:
    methods = dev.methods()
    gets = {path for verb, path in methods if verb == "GET"}
    assert gets == {path for verb, path in methods if verb == "HEAD"}
    for path in gets:
        assert methods["HEAD", path]["Properties"]["Integration"] == methods["GET", path]["Properties"]["Integration"]


def test_the_404_of_a_path_of_another_api_names_the_route_to_use(dev: Deployment) -> None:
    for path in ("/v1/responses", "/v1/completions", "/v1/messages", "/chat/completions", "/messages"):
        assert "Use POST /v1/chat/completions." in _refusal(dev, path)
    assert "Use GET /v1/models." in _refusal(dev, "/models")
    assert "Use GET /v1/usage or DELETE /v1/usage." in _refusal(dev, "/usage")
    assert not ROUTE_HINTS.keys() & {route.path for route in ROUTES}


def _refusal(deployment: Deployment, path: str) -> str:
    """Return the message with which API Gateway answers every method of this path."""
    integration = deployment.methods()["ANY", path]["Properties"]["Integration"]
    assert integration["Type"] == "MOCK"
    body = json.loads(integration["IntegrationResponses"][0]["ResponseTemplates"]["application/json"])
    return str(body["error"]["message"])


def test_rows_use_the_same_name_for_a_variable_at_the_same_place() -> None:
    """API Gateway allows only one path variable below a resource."""
    names: dict[str, set[str]] = {}
    for route in ROUTES:
        segments = route.path.split("/")
        for depth, segment in enumerate(segments):
            if segment.startswith("{"):
                parent = "/".join("*" if one.startswith("{") else one for one in segments[:depth])
                names.setdefault(parent, set()).add(segment)
    assert {parent: variables for parent, variables in names.items() if len(variables) > 1} == {}


def test_surfaces_share_no_path_below_the_first_segment() -> None:
    """A surface is a part of the API with its own stack. CloudFormation cannot move the resource of a path to another stack."""
    owners: dict[str, set[str]] = {}
    for route in ROUTES:
        segments = route.path.split("/")
        for depth in range(3, len(segments) + 1):
            owners.setdefault("/".join(segments[:depth]), set()).add(route.surface)
    assert {path: surfaces for path, surfaces in owners.items() if len(surfaces) > 1} == {}


def test_the_deployment_waits_for_every_surface(dev: Deployment) -> None:
    ((_, deployment),) = dev.resources("AWS::ApiGateway::Deployment")
    stacks = {logical_id for logical_id, _ in dev.resources("AWS::CloudFormation::Stack")}
    nested = {logical_id for logical_id in stacks if not logical_id.startswith(("jobs", "subscriptions"))}
    assert len(nested) == len(Surface)
    assert nested <= set(deployment["DependsOn"])


def test_no_surface_depends_on_the_stage(dev: Deployment) -> None:
    """The stage depends on the deployment, and the deployment depends on every surface."""
    stages = {logical_id for logical_id, _ in dev.resources("AWS::ApiGateway::Stage")}
    for _, nested in dev.resources("AWS::CloudFormation::Stack"):
        references = {value.get("Ref") for value in nested["Properties"]["Parameters"].values()}
        assert not references & stages


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda routes: routes[:-1], id="a route is removed"),
        pytest.param(
            lambda routes: (*(replace(row, long=False) if row.module == "ask.create" else row for row in routes),),
            id="a route does not stream",
        ),
        pytest.param(lambda routes: (*routes[:-1], replace(routes[-1], method="PUT")), id="a method is changed"),
    ],
)
def test_changed_routes_create_a_new_deployment(
    dev: Deployment,
    synthesize: Callable[[Environment], Deployment],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[tuple[Route, ...]], tuple[Route, ...]],
) -> None:
    monkeypatch.setattr("infra.stacks.api.ROUTES", change(ROUTES))
    ((before, _),) = dev.resources("AWS::ApiGateway::Deployment")
    ((after, _),) = synthesize(DEV).resources("AWS::ApiGateway::Deployment")
    assert after != before


def test_the_same_routes_keep_their_deployment(dev: Deployment, synthesize: Callable[[Environment], Deployment]) -> None:
    ((before, _),) = dev.resources("AWS::ApiGateway::Deployment")
    ((after, _),) = synthesize(DEV).resources("AWS::ApiGateway::Deployment")
    assert after == before


def test_only_functions_that_embed_have_the_variable_of_the_embedding_model(dev: Deployment) -> None:
    for route in ROUTES:
        variables = dev.functions()[route.function_name]["Environment"]["Variables"]
        assert ("SPASS_MODEL" in variables) == (Permission.EMBEDDING in route.permissions)


@pytest.mark.parametrize("route", ROUTES, ids=NAMES)
def test_a_function_has_exactly_the_layers_that_it_needs(dev: Deployment, route: Route) -> None:
    layers = ["Config", "Runtime"]
    if Permission.EMBEDDING in route.permissions:
        layers.append("Model")
    if route.function_name == "meta-docs":
        layers.append("SwaggerUi")
    if Permission.EDITOR in route.permissions:
        layers.append("Editor")
    if route.long:
        layers.append("753240598075:layer:LambdaAdapterLayerArm64:30")
    assert sorted(dev.layers(route.function_name)) == sorted(layers)
    assert len(layers) <= MAX_LAYERS


def test_exactly_the_functions_that_run_agents_have_the_editor(dev: Deployment) -> None:
    edits = {"chat.completions", "ask.create", "agents.chat", "sessions.append", "streams.create", "streams.job_card"}
    edits |= {"managed.message_send", "runs"}
    for row in ROWS:
        variables = dev.functions()[row.function_name]["Environment"]["Variables"]
        assert variables.get("SPASS_EDITOR") == ("/opt/editor" if row.module in edits else None), row.module
