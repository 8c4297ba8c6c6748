"""The body of the API says for every path and method what the laptop answers, and what docs/openapi.json describes."""

import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from fastapi.routing import APIRoute
from schemathesis.specs.openapi.definitions import OPENAPI_30_VALIDATOR

from infra.openapi_body import openapi_body
from infra.routes import ROUTES
from local.server import local_app, routers
from spass.testing.aws import MemoryAws
from spass.web.services import Services
from tests.functions.gateway import write_operators_files

pytestmark = pytest.mark.anyio

Body = dict[str, Any]

DESCRIPTION: Final = Path(__file__).parents[3] / "docs" / "openapi.json"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")
ORIGINS: Final = [f"https://app{number}.example.com" for number in range(10)]
ANY: Final = "x-amazon-apigateway-any-method"


def body(*origins: str) -> Body:
    """Return the body of the API as JSON. The address of a function is its name."""
    made = openapi_body(
        tls="SecurityPolicy_TLS13_1_3_2025_09",
        title="spass-test",
        description="A test.",
        routes=ROUTES,
        uri=lambda route: route.function_name,
        origins=origins,
    )
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    services = Services(write_operators_files(tmp_path))
    services.aws = MemoryAws()
    transport = httpx.ASGITransport(local_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://laptop") as client:
        yield client


def served_by(method: str, path: str) -> str | None:
    """Return the function of the row that serves a request on the laptop, which prefers fixed segments to variables."""
    found = [
        (len(route.param_convertors), route.endpoint.__module__)
        for router in routers()
        for route in router.routes
        if isinstance(route, APIRoute)
        and ("GET" if method == "HEAD" else method) in (route.methods or ())
        and route.path_regex.fullmatch(path)
    ]
    functions = {f"functions.{route.module}": route.function_name for route in ROUTES}
    return functions[min(found)[1]] if found else None


async def differences(described: Body, client: httpx.AsyncClient) -> list[str]:
    """Return where the laptop answers differently than API Gateway with this body."""
    found: list[str] = []
    if lost := {route.resource for route in ROUTES} - described["paths"].keys():
        found.append(f"the body has no {sorted(lost)}")
    for path, item in described["paths"].items():
        requested = re.sub(r"\{\w+\}", "x", re.sub(r"\{\w+\+\}", "x/y", path))
        for method in METHODS:
            integration = item.get(method.lower(), item[ANY])["x-amazon-apigateway-integration"]
            if integration["type"] == "aws_proxy":
                if (function := served_by(method, requested)) != integration["uri"]:
                    found.append(f"{method} {path} is served by {function}, not {integration['uri']}")
                continue
            answer = await client.request(method, requested)
            sent = answer.status_code, answer.headers.get("allow"), answer.content
            if sent != (expected := _refusal(integration, method, answer.headers["SPASS-Request-Id"])):
                found.append(f"{method} {path} is answered by {sent}, not {expected}")
    return found


def _refusal(integration: dict[str, Any], method: str, request_id: str) -> tuple[int, str | None, bytes]:
    """Return the status, the header ``Allow`` and the bytes that API Gateway sends."""
    answer = integration["responses"]["default"]
    text = answer["responseTemplates"]["application/json"].replace("$context.requestId", request_id)
    allow = answer["responseParameters"].get("method.response.header.Allow")
    return int(answer["statusCode"]), allow and allow.strip("'"), b"" if method == "HEAD" else text.encode()


async def test_the_laptop_answers_to_every_path_and_method_as_the_body_says(client: httpx.AsyncClient) -> None:
    assert await differences(body(), client) == []


def _swap(paths: Body) -> None:
    paths["/v1/usage"]["get"], paths["/v1/usage"]["delete"] = paths["/v1/usage"]["delete"], paths["/v1/usage"]["get"]


def _change_answer(path: str, **parts: Any) -> Callable[[Body], None]:
    return lambda paths: paths[path][ANY]["x-amazon-apigateway-integration"]["responses"]["default"].update(parts)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_swap, id="two functions are swapped"),
        pytest.param(lambda paths: paths["/v1/usage"].pop("head"), id="a GET row has no HEAD"),
        pytest.param(lambda paths: paths["/v1/usage"].pop("delete"), id="a row is missing"),
        pytest.param(lambda paths: paths.pop("/v1/usage"), id="a path is missing"),
        pytest.param(lambda paths: paths["/v1/ask"].update(put=paths["/v1/ask"]["post"]), id="a method too many"),
        pytest.param(_change_answer("/v1/ask", responseParameters={}), id="no Allow"),
        pytest.param(_change_answer("/v1/ask", statusCode="404"), id="another status"),
        pytest.param(_change_answer("/messages", responseTemplates={"application/json": "{}"}), id="no hint"),
    ],
)
async def test_a_changed_body_differs_from_the_laptop(client: httpx.AsyncClient, change: Callable[[Body], object]) -> None:
    changed = body()
    change(changed["paths"])
    assert await differences(changed, client) != []


def test_the_description_of_the_api_has_the_methods_of_the_body() -> None:
    described = {(path, verb) for path, item in json.loads(DESCRIPTION.read_text())["paths"].items() for verb in item}
    in_body = {
        (path.replace("+}", "}"), verb)
        for path, item in body()["paths"].items()
        for verb in item
        if verb not in {"parameters", "head", ANY}
    }
    undescribed = {"/", "/ui", "/ui/{asset}", "/openapi.json", "/docs", "/docs/{file}"}
    append = "/a1/rag/indices/{index_id}/documents/append"  # a document may have this id
    assert in_body - described == {(path, "get") for path in undescribed} | {
        (append, verb) for verb in ("get", "delete", "patch")
    }
    assert described <= in_body


@pytest.mark.parametrize("count", [0, 1, 10])
def test_the_body_is_valid_openapi_and_stays_small(count: int) -> None:
    document = body(*ORIGINS[:count])
    assert [error.message for error in OPENAPI_30_VALIDATOR.iter_errors(document)] == []
    assert len(json.dumps(document)) < 350_000
    assert len(document["paths"]) <= 250


@pytest.mark.parametrize("origins", [ORIGINS[:1], ORIGINS])
def test_with_origins_every_path_answers_a_preflight_and_names_a_listed_origin(origins: list[str]) -> None:
    described = body(*origins)
    listed = ",".join(f"'{origin}'" for origin in origins)
    for item in described["paths"].values():
        preflight = item["options"]["x-amazon-apigateway-integration"]["responses"]["default"]
        allow = ", ".join(sorted(verb.upper() for verb in item if verb not in {"options", "parameters", ANY}))
        assert preflight["statusCode"] == "204"
        assert preflight["responseParameters"] == {
            "method.response.header.Access-Control-Allow-Methods": f"'{allow}'",
            "method.response.header.Access-Control-Allow-Headers": "'*, Authorization'",
            "method.response.header.Access-Control-Max-Age": "'7200'",
        }
        assert preflight["responseTemplates"]["application/json"] == (
            f"#set($origins=[{listed}])#set($sent=$input.params().header)"
            "#set($origin=$sent.get('origin'))#if(!$origin)#set($origin=$sent.get('Origin'))#end"
            "#if($origins.contains($origin))#set($context.responseOverride.header.Access-Control-Allow-Origin=$origin)"
            "#set($context.responseOverride.header.Vary='Origin')#end"
        )
        refusal = item[ANY]["x-amazon-apigateway-integration"]["responses"]["default"]
        assert refusal["responseParameters"]["method.response.header.Access-Control-Allow-Origin"] == "'*'"
    for response in described["x-amazon-apigateway-gateway-responses"].values():
        assert response["responseParameters"]["gatewayresponse.header.Access-Control-Allow-Origin"] == "'*'"


def test_without_origins_there_is_no_preflight_and_no_header_of_cors() -> None:
    assert "Access-Control" not in json.dumps(body())
    assert not any("options" in item for item in body()["paths"].values())
