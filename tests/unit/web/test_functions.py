"""Test Lambda functions: request paths with a stage or a custom domain, headers, HEAD, and the start."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from spass.web.app import create_app, location
from spass.web.bodies import json_response
from spass.web.http_function import RequestPath, lambda_handler, split_path, stream_app
from spass.web.public_routing import public_router
from spass.web.services import Services

router = public_router()


@router.get("/a1/things/{name}")
async def thing(name: str, request: Request) -> Response:
    many: list[Any] = request.headers.getlist("x-many")
    return json_response({"name": name, "many": many}, headers={"Location": location(request, f"/a1/things/{name} 2")})


def event(path: str, full_path: str) -> dict[str, Any]:
    return {
        "resource": "/a1/things/{name}",
        "path": path,
        "httpMethod": "GET",
        "headers": {"x-many": "two"},
        "multiValueHeaders": {"x-many": ["one", "two"]},
        "requestContext": {"path": full_path},
        "body": None,
        "isBase64Encoded": False,
    }


@pytest.mark.parametrize(
    ("path", "full_path", "root", "route_path"),
    [
        ("/a1/things/x", "/prod/a1/things/x", "/prod", "/a1/things/x"),  # the stage's own address
        ("/a1/things/x", "/a1/things/x", "", "/a1/things/x"),  # a custom domain at its root
        ("/gw/a1/things/x", "/gw/a1/things/x", "/gw", "/a1/things/x"),  # a custom domain's base path
        ("/a1/things/%C3%BC", "/prod/a1/things/%C3%BC", "/prod", "/a1/things/ü"),
        ("/a1/things/a%2Fb", "/prod/a1/things/a%2Fb", "/prod", "/a1/things/a/b"),
        # API Gateway picks the same route for these and passes the path on unchanged.
        ("/a1/things/x/", "/prod/a1/things/x/", "/prod", "/a1/things/x"),
        ("//a1/things/x", "/prod//a1/things/x", "/prod", "/a1/things/x"),
        ("/gw//a1/things/x/", "/gw//a1/things/x/", "/gw", "/a1/things/x"),
    ],
)
def test_the_path_is_split_into_the_root_path_and_the_path_of_the_route(
    path: str, full_path: str, root: str, route_path: str
) -> None:
    assert split_path(path, full_path, "/a1/things/{name}") == RequestPath(root, root + route_path)


@pytest.mark.parametrize(
    ("path", "full_path", "root", "route_path"),
    [
        ("/v1/models/small", "/prod/v1/models/small", "/prod", "/v1/models/small"),
        ("/v1/models/meta/llama/4", "/prod/v1/models/meta/llama/4", "/prod", "/v1/models/meta/llama/4"),
        ("/v1/models/meta%2Fllama", "/prod/v1/models/meta%2Fllama", "/prod", "/v1/models/meta/llama"),
        ("/gw/v1/models/a/b", "/gw/v1/models/a/b", "/gw", "/v1/models/a/b"),
        ("/v1/models/a/v1/models/b", "/v1/models/a/v1/models/b", "", "/v1/models/a/v1/models/b"),
    ],
)
def test_a_greedy_parameter_takes_the_rest_of_the_path(path: str, full_path: str, root: str, route_path: str) -> None:
    assert split_path(path, full_path, "/v1/models/{model+}") == RequestPath(root, root + route_path)


def test_location_includes_the_stage_and_repeated_headers_arrive(services: Services, loop: asyncio.AbstractEventLoop) -> None:
    handler = lambda_handler(router, services)
    answer = handler(event("/a1/things/x", "/prod/a1/things/x"), None)  # type: ignore[arg-type]
    assert answer["body"] == '{"name":"x","many":["one","two"]}'
    assert answer["headers"]["location"] == "/prod/a1/things/x%202"
    answer = handler(event("/gw/a1/things/x", "/gw/a1/things/x"), None)  # type: ignore[arg-type]
    assert answer["headers"]["location"] == "/gw/a1/things/x%202"


def test_head_of_a_function_has_the_headers_of_get_and_no_body(services: Services, loop: asyncio.AbstractEventLoop) -> None:
    handler = lambda_handler(router, services)
    request = event("/a1/things/x/", "/prod/a1/things/x/")
    get = handler(request, None)  # type: ignore[arg-type]
    head = handler({**request, "httpMethod": "HEAD"}, None)  # type: ignore[arg-type]
    assert (head["statusCode"], head["body"]) == (200, "")
    assert {**head["headers"], "spass-request-id": ""} == {**get["headers"], "spass-request-id": ""}


@pytest.mark.anyio
async def test_outside_lambda_the_header_of_the_web_adapter_is_ignored(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = '{"path": "/prod/a1/things/x", "resourcePath": "/a1/things/{name}"}'
    transport = httpx.ASGITransport(stream_app(router, services))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for is_lambda, expected in ((False, "/a1/things/x%202"), (True, "/prod/a1/things/x%202")):
            if is_lambda:
                monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "things")
            answer = await client.get("/a1/things/x", headers={"x-amzn-request-context": context})
            assert answer.headers["location"] == expected
        for malformed in ("{", "[]", "null", '{"path": 1, "resourcePath": []}'):
            answer = await client.get("/a1/things/x", headers={"x-amzn-request-context": malformed})
            assert answer.status_code == 200


@pytest.mark.anyio
async def test_the_app_closes_the_models_router_when_the_server_ends(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    async def aclose() -> None:
        calls.append("aclose")

    monkeypatch.setattr(services.router, "aclose", aclose)
    app = create_app([router], services)
    async with app.router.lifespan_context(app):
        assert calls == []
    assert calls == ["aclose"]


def test_a_function_in_lambda_creates_its_services_at_its_start(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(services.aws, "connect", lambda: calls.append("connect"))

    def warm_up(argument: Services) -> None:
        assert argument is services
        calls.append("warm_up")

    stream_app(router, services, warm_up=warm_up)
    assert calls == []
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "spass-dev-things")
    stream_app(router, services, warm_up=warm_up)
    lambda_handler(router, services)
    assert calls == ["connect", "warm_up", "connect"]
    assert "tokens" in services.__dict__, "the cached property was not computed at the start"


_PROGRAM = """
import sys
from pathlib import Path
from pydantic import BaseModel
from spass.web.routing import api_router

class Answer(BaseModel):
    n: int

router = api_router()

@router.get("/v1/answer")
async def answer(n: int) -> Answer:
    return Answer(n=n)

print([name for name, module in sys.modules.items() if name.startswith("pydantic.v1") and module])
"""


def test_a_function_in_lambda_starts_without_pydantic_1() -> None:
    environment = {"PYTHONPATH": "shared:.", "AWS_LAMBDA_FUNCTION_NAME": "answer", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", _PROGRAM]
    process = subprocess.run(command, cwd=Path(__file__).parents[3], env=environment, capture_output=True, check=True, text=True)
    assert process.stdout.strip() == "[]"
