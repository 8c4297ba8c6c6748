"""Every row of ROUTES has its function, with the handler, the layers and the variables that it needs."""

import json
from collections import Counter

import pytest

from infra.release import release
from infra.routes import ROUTE_HINTS, ROUTES, Permission, Route
from infra.workers import WORKERS, Worker

from .conftest import Deployment

ROWS: list[Route | Worker] = [*ROUTES, *WORKERS]
MAX_LAYERS = 4  # of 5 that Lambda allows: an operator may add one
NAMES = [f"{route.method} {route.path}" for route in ROUTES]


@pytest.mark.parametrize("route", ROUTES, ids=NAMES)
def test_every_row_is_in_the_description_of_its_function(dev: Deployment, route: Route) -> None:
    assert f"{route.method} {route.path}" in dev.functions()[route.function_name]["Description"].removeprefix(
        "Spass dev: "
    ).split(", ")


@pytest.mark.parametrize("route", [route for route in ROUTES if route.long], ids=lambda route: route.path)
def test_the_function_of_a_long_route_runs_for_15_minutes_under_the_web_adapter(dev: Deployment, route: Route) -> None:
    function = dev.functions()[route.function_name]
    variables = function["Environment"]["Variables"]
    assert function["Handler"] == "run.sh"
    assert function["Timeout"] == 900
    assert variables["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/bootstrap"
    assert variables["AWS_LWA_INVOKE_MODE"] == "RESPONSE_STREAM"
    assert variables["AWS_LWA_READINESS_CHECK_PROTOCOL"] == "TCP"
    assert variables["SPASS_APP"] == f"functions.{route.module}:app"


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.long], ids=lambda route: f"{route.method} {route.path}")
def test_the_function_of_a_short_route_ends_within_29_seconds(dev: Deployment, route: Route) -> None:
    function = dev.functions()[route.function_name]
    assert function["Handler"].startswith("functions.")
    assert function["Handler"].endswith(".handler")
    assert function["Timeout"] == 29
    assert "AWS_LAMBDA_EXEC_WRAPPER" not in function["Environment"]["Variables"]


def test_only_the_function_of_health_changes_with_the_commit(copy: Deployment) -> None:
    assert copy.functions()["meta-health"]["Environment"]["Variables"].pop("SPASS_RELEASE") == release()
    assert not [template for template in copy.templates() if f'"{release()}"' in json.dumps(template)]


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


def test_the_404_of_a_path_of_another_api_names_the_route_to_use() -> None:
    for path in ("/v1/responses", "/v1/completions", "/v1/messages", "/chat/completions", "/messages"):
        assert "Use POST /v1/chat/completions." in ROUTE_HINTS[path]
    assert "Use GET /v1/models." in ROUTE_HINTS["/models"]
    assert "Use GET /v1/usage or DELETE /v1/usage." in ROUTE_HINTS["/usage"]
    assert not ROUTE_HINTS.keys() & {route.path for route in ROUTES}


def test_only_functions_that_embed_have_the_variable_of_the_embedding_model(dev: Deployment) -> None:
    for route in ROUTES:
        variables = dev.functions()[route.function_name]["Environment"]["Variables"]
        assert ("SPASS_MODEL" in variables) == (Permission.EMBEDDING in route.permissions)


@pytest.mark.parametrize("route", ROUTES, ids=NAMES)
def test_a_function_has_exactly_the_layers_that_it_needs(dev: Deployment, route: Route) -> None:
    layers = ["Runtime"]
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
