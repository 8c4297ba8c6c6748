"""The whole gateway in one process: real route files, real services, a table and a bucket in memory, a scripted model.

Short routes get API Gateway events, long routes get HTTP over ASGI. Each route has its own app, as in AWS.
"""

import asyncio
import base64
import hashlib
import importlib
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, unquote

import httpx
import jsonschema_rs
import pytest
from botocore.client import BaseClient
from pydantic import BaseModel
from starlette.types import Message

from infra.routes import BINARY_MEDIA_TYPES, ROUTES, Route, Surface
from spass.aws.clients import Aws
from spass.aws.connections import Endpoint
from spass.aws.dynamodb import DynamoDBTable
from spass.aws.dynamodb_client import DynamoDBClient
from spass.aws.http_connection import Answer
from spass.core.messages import Json
from spass.core.time import Deadline, now_s
from spass.store.table import TableClient
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices
from spass.testing.model import ScriptedModel
from spass.testing.table import MemoryTable, MemoryTableClient
from spass.web.exchange import normalize_path
from spass.web.http_function import LambdaFunction, lambda_handler, stream_app
from spass.web.services import Services, Settings
from tests.simulated.interpreter import InProcessSandbox

T = TypeVar("T")
TABLE, BUCKET, STAGE = "spass-test", "spass-test", "prod"
MAX_ANSWER_BYTES = 6 * 1024 * 1024


def _sha(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


CONFIG = f"""
llm:
  retries: 0
  backends: [{{name: scripted, provider: ollama, supported_models: [small, dear, mini-embed]}}]
models:
  - {{name: small, context_window: 8000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: dear, context_window: 8000}}
  - {{name: mini-embed, kind: embedding, dimensions: 8, context_window: 256, usd_per_mtok_in: 1}}
defaults: {{embedding_model: mini-embed}}
usd_to_eur: 0.5
tenants:
  - id: demo
    tokens:
      - {{id: demo-admin, sha256: {_sha("demo-admin-token")}, admin: true, allowed_models: ["*"]}}
      - {{id: demo-user, sha256: {_sha("demo-token")}, allowed_models: [small, mini-embed]}}
      - {{id: demo-chat, sha256: {_sha("chat-only-token")}, allowed_models: [small]}}
  - id: demo-2
    tokens: [{{id: sibling, sha256: {_sha("sibling-token")}, allowed_models: ["*"]}}]
  - id: other
    tokens: [{{id: other, sha256: {_sha("other-token")}, allowed_models: ["*"]}}]
"""

AGENTS = {
    "plain": "name: plain\nmodel: small\ndescription: Answers.\nsystem_prompt: Answer.\n",
    "counting": "name: counting\nmodel: small\ndescription: Counts.\ntools: [calculator, rag_query]\n",
    "reading": "name: reading\nmodel: small\ndescription: Reads.\nrag_index: notes\nrag_top_k: 2\n",
    "costly": "name: costly\nmodel: dear\ndescription: Costs.\n",
}


@dataclass
class Breakdown:
    """What all services of AWS do at once. ``calls`` counts the requests."""

    answer: Answer | Exception
    error: Exception
    calls: int = 0

    async def send(self, _: bytes, *, on_new_connection: bool = False) -> Answer:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def call(self, *_: object) -> None:
        self.calls += 1
        raise self.error


class MotoAws(Aws):
    """The bucket and the other services of moto, and a table in memory: moto answers boto3's clients only."""

    def __init__(self) -> None:
        super().__init__(table=TABLE, bucket=BUCKET)
        self.table = MemoryTable(now_s)

    @cached_property
    def _table_client(self) -> TableClient:
        return MemoryTableClient(self.table)

    def break_down(self, patch: pytest.MonkeyPatch, answer: Answer | Exception, error: Exception) -> "Breakdown":
        """Let DynamoDB give ``answer`` to every request, and each other service fail with ``error``."""
        breakdown = Breakdown(answer, error)
        self.__dict__["_table_client"] = DynamoDBTable(DynamoDBClient(), TABLE)
        patch.setattr(Endpoint, "send", breakdown.send)
        patch.setattr(BaseClient, "_make_api_call", breakdown.call)
        return breakdown

    def create_bucket(self) -> None:
        self._s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str | None:
        """Return the code of an error, or None. Check the envelope."""
        if self.status < 400:
            return None
        body = self.json
        assert set(body) == {"error", "request_id"}, body
        assert set(body["error"]) == {"code", "message", "type", "param", "details"}, body
        assert body["request_id"] == self.headers["spass-request-id"]
        if body["error"]["code"] == "invalid_request":
            assert body["error"]["details"]["errors"], body
        for report in body["error"]["details"].get("errors", ()):
            assert set(report) == {"loc", "message", "type"}, body
            assert not report["message"].startswith(("Input ", "String ", "List ", "Field ", "Value ", "Extra ")), (
                "the message must not be pydantic's"
            )
            assert report["loc"][0] in {"body", "header", "path", "query"}, body
        return str(body["error"]["code"])


def write_operators_files(folder: Path) -> Settings:
    """Write gateway.yaml and the agents into ``folder``."""
    config, agents = folder / "gateway.yaml", folder / "agents"
    config.write_text(CONFIG)
    agents.mkdir()
    for name, text in AGENTS.items():
        (agents / f"{name}.yaml").write_text(text)
    return Settings(config=config, agents=agents, table=TABLE, bucket=BUCKET)


class Gateway:
    """A gateway that sends each request to the function that API Gateway would choose."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, aws: Aws) -> None:
        self.model = ScriptedModel()
        self.aws = aws
        self.services = ScriptedServices(write_operators_files(folder), self.model, aws)
        self.sandbox = self.services.sandbox = InProcessSandbox()
        self._loop = loop
        self._functions: dict[str, Any] = {}

    def send(
        self,
        method: str,
        target: str,
        *,
        token: str | None = "demo-token",
        user: str | None = "ada",
        headers: Mapping[str, str] | None = None,
        body: object = None,
        raw: bytes | None = None,
    ) -> Reply:
        """Send a request. ``target`` is the escaped path and query. ``body`` is sent as JSON, ``raw`` unchanged."""
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        sent = _sent_headers(target, token, user, content) | dict(headers or {})
        route = _require_route(method, target)
        function = self._function(route)
        if isinstance(function, LambdaFunction):
            reply = _from_event(function(event(method, target, route.resource, sent, content), _CONTEXT))
        else:
            reply = self._loop.run_until_complete(_over_asgi(function, method, target, sent, content))
        if method == "HEAD":
            assert reply.text == ""
        else:
            assert_described(route, reply)
        return reply

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``, run in the loop of the requests."""
        return self._loop.run_until_complete(work)

    def send_to(self, app: Any, method: str, target: str) -> Reply:
        """Send a request to an app of all routes, as the laptop serves them."""
        sent = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}
        return self._loop.run_until_complete(_over_asgi(app, method, target, sent, b""))

    def send_during(self, request: Awaitable[Reply], others: Awaitable[None]) -> Reply:
        """Return the reply to a request during which the requests of ``others`` are sent."""

        async def send_both() -> Reply:
            reply, _ = await asyncio.gather(request, others)
            return reply

        return self._loop.run_until_complete(send_both())

    def send_together(self, requests: Iterable[Awaitable[Reply]]) -> list[Reply]:
        """Return the replies to requests that are sent at the same time."""

        async def send_all() -> list[Reply]:
            return [*await asyncio.gather(*requests)]

        return self._loop.run_until_complete(send_all())

    async def send_async(
        self,
        method: str,
        target: str,
        *,
        token: str = "demo-token",
        user: str = "ada",
        headers: Mapping[str, str] | None = None,
        body: object = None,
        raw: bytes | None = None,
    ) -> Reply:
        """Send a request from a coroutine, for example while another request is running."""
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        sent = _sent_headers(target, token, user, content) | dict(headers or {})
        route = _require_route(method, target)
        function = self._function(route)
        if isinstance(function, LambdaFunction):
            request = event(method, target, route.resource, sent, content)
            reply = _from_event(await asyncio.to_thread(_invoke_in_new_loop, function, request))
        else:
            reply = await _over_asgi(function, method, target, sent, content)
        assert_described(route, reply)
        return reply

    async def post_async(self, target: str, headers: Mapping[str, str], body: object) -> Reply:
        """Send a POST to a long route from a coroutine, for example while another request is running."""
        route = find_route("POST", target)
        assert route is not None
        user = {"SPASS-User-Id": "ada"} if target.startswith(("/a1/", "/c1/")) else {}
        sent = {"Authorization": "Bearer demo-admin-token", "Content-Type": "application/json", **user, **headers}
        return await _over_asgi(self._function(route), "POST", target, sent, json.dumps(body).encode())

    def _function(self, route: Route) -> Any:
        if route.module not in self._functions:
            module = importlib.import_module(f"functions.{route.module}")
            make = stream_app if route.long else lambda_handler
            self._functions[route.module] = make(module.router, self.services)
        return self._functions[route.module]

    def watch(self, method: str, target: str, look: Callable[[Message], object]) -> None:
        """Call ``look`` with each message of the answers of a long route before it is sent."""
        route = _require_route(method, target)
        function = self._function(route)

        async def watched(scope: Any, receive: Any, send: Callable[[Message], Awaitable[None]]) -> None:
            async def send_seen(message: Message) -> None:
                look(message)
                await send(message)

            await function(scope, receive, send_seen)

        self._functions[route.module] = watched

    def leave(self, target: str, headers: Mapping[str, str], body: object, *, when: asyncio.Event | None = None) -> list[Message]:
        """Send a POST whose client disconnects immediately, or ``when`` the event is set. Return the messages that the server
        sent. Wait half a second after the response, so that background tasks have ended."""
        route = find_route("POST", target)
        assert route is not None
        incoming: list[Message] = [
            {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False},
            {"type": "http.disconnect"},
        ]
        outgoing: list[Message] = []

        async def receive() -> Message:
            if len(incoming) > 1:
                return incoming.pop(0)
            if when is not None:
                await when.wait()
            return incoming[0]

        async def send(message: Message) -> None:
            outgoing.append(message)

        sent = {"authorization": "Bearer demo-admin-token", "spass-user-id": "ada", **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": target,
            "raw_path": target.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "server": ("x", 80),
        }
        self._loop.run_until_complete(self._function(route)(scope, receive, send))
        self._loop.run_until_complete(asyncio.sleep(0.5))
        return outgoing

    def put_documents(self, **texts: str) -> None:
        """Write the index ``notes`` with a document for each text, by its id."""
        documents = {"documents": [{"id": name, "text": text} for name, text in texts.items()]}
        assert self.send("POST", "/a1/rag/indices/notes/documents", body=documents).status == 200

    def set_config(self, **settings: object) -> None:
        """Change settings of the tenant ``demo``."""
        assert self.send("PUT", "/v1/tenant/config", token="demo-admin-token", body=settings).status == 200

    def reconfigure(self, folder: Path, before: str, after: str) -> "Gateway":
        """Return another gateway with the same table and bucket. Its gateway.yaml has ``after`` instead of ``before``."""
        folder.mkdir()
        other = Gateway(folder, self._loop, self.aws)
        config = other.services.settings.config
        assert before in config.read_text()
        config.write_text(config.read_text().replace(before, after))
        return other

    def work(self, work: Callable[[Services, Mapping[str, Any], Deadline], Awaitable[Json]], event: Mapping[str, Any]) -> Json:
        """Return the answer of a worker to ``event``."""
        return self._loop.run_until_complete(_awaited(work(self.services, event, Deadline.after(60))))

    def wait(self, seconds: float) -> None:
        """Let background tasks run for some seconds."""
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Return the audit records in the table."""
        return [item for item in self.items() if "#AUDIT#" in str(item["pk"])]

    def stored(self) -> Mapping[str, object]:
        """Return all items and objects, except audit records and the items of limits."""
        beside = ("#AUDIT#", "#LIMIT#")
        items = {f"{item['pk']}{item['sk']}": item for item in self.items() if not any(part in item["pk"] for part in beside)}
        return {**items, **self.objects()}

    def items(self) -> Sequence[Mapping[str, Any]]:
        """Return all items of the table."""
        assert isinstance(self.aws, MemoryAws | MotoAws)
        return list(self.aws.table.items())

    def objects(self) -> Mapping[str, bytes]:
        """Return the bodies of all objects by key."""
        if isinstance(self.aws, MemoryAws):
            return self.aws.bucket.objects
        bucket = self.aws._s3
        listed = bucket.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return {entry["Key"]: bucket.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read() for entry in listed}


async def _awaited(work: Awaitable[Json]) -> Json:
    return await work


_CONTEXT: Any = SimpleNamespace(aws_request_id="test")


def _sent_headers(target: str, token: str | None, user: str | None, content: bytes) -> dict[str, str]:
    """Return the headers of every request with this caller and content."""
    sent = {"Host": "gateway.test", "X-Forwarded-Proto": "https", "X-Forwarded-Port": "443"}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    if user is not None and target.startswith(("/a1/", "/c1/")):
        sent["SPASS-User-Id"] = user
    if content:
        sent["Content-Type"] = "application/json"
    return sent


def _invoke_in_new_loop(function: LambdaFunction, request: dict[str, Any]) -> dict[str, Any]:
    """Invoke a short route in this thread, which needs an event loop of its own."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return function(request, _CONTEXT)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _require_route(method: str, target: str) -> Route:
    route = find_route(method, target.partition("?")[0])
    if route is None:
        raise LookupError(f"API Gateway has no route for {method} {target}")
    return route


def assert_described(route: Route, reply: Reply) -> None:
    """Check a JSON answer of ``route`` against the OpenAPI document and the declared model."""
    is_json = reply.headers.get("content-type", "").startswith("application/json")
    if route.module in {"meta.openapi", "meta.docs", "meta.docs_file"} or route.surface is Surface.PAGE or not is_json:
        return
    _validator(route.path, route.method, reply.status).validate(reply.json)
    if reply.status < 400:
        model = _declared_model(route, reply.status)
        model.model_validate_json(json.dumps(reply.json), strict=True)


@cache
def _validator(path: str, method: str, status: int) -> jsonschema_rs.Validator:
    """Return the validator of answers with ``status``. Compiling one takes as long as two requests."""
    document = openapi_document()
    responses = document["paths"][path][method.lower()]["responses"]
    assert status >= 400 or str(status) in responses
    schema = responses.get(str(status), responses["default"])["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": document["components"]}, validate_formats=True)


def _declared_model(route: Route, status: int) -> type[BaseModel]:
    """Return the model that ``route`` declares for answers with ``status``."""
    (served,) = importlib.import_module(f"functions.{route.module}").router.routes
    model: type[BaseModel] = served.responses.get(status, {}).get("model", served.response_model)
    return model


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    document: dict[str, Any] = importlib.import_module("functions.meta.openapi").document()
    return document


def find_route(method: str, path: str) -> Route | None:
    """Return the row that API Gateway would choose. It prefers fixed segments to parameters."""
    path = normalize_path(path)
    matches = [route for route in ROUTES if method in route.methods and _pattern(route.resource).fullmatch(path)]
    return min(matches, key=lambda route: route.path.count("{"), default=None)


@cache
def _pattern(resource: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", re.sub(r"\{\w+\+\}", ".+", resource)))


def event(method: str, target: str, resource: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return a REST API proxy event (https://docs.aws.amazon.com/lambda/latest/dg/services-apigateway.html)."""
    path, _, query = target.partition("?")
    parameters = parse_qs(query, keep_blank_values=True)
    try:
        text, encoded = body.decode(), bool(body) and headers.get("Content-Type") in BINARY_MEDIA_TYPES
    except UnicodeDecodeError:
        text, encoded = "", True
    if encoded:
        text = base64.b64encode(body).decode()
    return {
        "resource": resource,
        "path": path,
        "httpMethod": method,
        "headers": dict(headers),
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": {name: values[-1] for name, values in parameters.items()} or None,
        "multiValueQueryStringParameters": parameters or None,
        "pathParameters": {"proxy": unquote(path)},
        "stageVariables": None,
        "requestContext": {
            "resourcePath": resource,
            "path": f"/{STAGE}{path}",
            "stage": STAGE,
            "httpMethod": method,
            "requestId": "apigw",
            "identity": {"sourceIp": "127.0.0.1"},
        },
        "body": text or None,
        "isBase64Encoded": encoded,
    }


def _from_event(answer: Mapping[str, Any]) -> Reply:
    assert not answer["isBase64Encoded"]
    assert len(json.dumps(answer, ensure_ascii=False).encode()) <= MAX_ANSWER_BYTES, "the answer is too large for Lambda"
    return Reply(answer["statusCode"], answer["headers"], answer["body"].encode())


async def _over_asgi(app: Any, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        answer = await client.request(method, f"https://gateway.test{target}", headers=dict(headers), content=body)
    return Reply(answer.status_code, answer.headers, answer.content)


def escaped(segment: str) -> str:
    return quote(segment, safe="")
