"""SnapStart: processes that are restored from the same snapshot share no random state, clients, credentials or settings."""

import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from spass.core.bus import TOOL_CALL_START
from spass.core.bus_events import ToolCallStart
from spass.core.ids import RequestId, TenantId
from spass.core.time import timestamp
from spass.store.keys import Key
from spass.testing.event_log import EventLog
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve
from spass.web.bodies import json_response
from spass.web.http_function import StreamApp, stream_app
from spass.web.public_routing import public_router
from spass.web.services import Services, get_services

pytestmark = pytest.mark.anyio

HOOK = "/restored"
KEY = "/spass/dev/ANTHROPIC_API_KEY"
TOOL_CALL = ToolCallStart(
    at=timestamp(0),
    tenant=TenantId("demo"),
    request_id=RequestId("req_1"),
    parent_request_id=RequestId("req_1"),
    agent=None,
    kind=None,
    session_id=None,
    call_id=RequestId("req_2"),
    tool=None,
)
router = public_router()


@router.get("/use")
async def use(request: Request) -> Response:
    """Read the table, and return a random number and a provider's key."""
    await get_services(request).aws.for_tenant(TenantId("demo")).table.get(Key("T#demo#CFG", "HEAD"))
    return json_response({"random": random.random(), "key": get_services(request).keys.get("ANTHROPIC_API_KEY")})


@dataclass
class AwsServer:
    """DynamoDB and SSM over a socket. ``signers`` has each operation with the access key that signed it."""

    url: str = ""
    key: str = "first"
    signers: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        operation = request.headers["X-Amz-Target"].rpartition(".")[2]
        signer = re.search(r"Credential=([^/]+)/", request.headers["Authorization"])
        self.signers.append((operation, signer[1] if signer else ""))
        return json_answer({"Parameters": [{"Name": KEY, "Value": self.key}]} if operation == "GetParameters" else {})


@pytest.fixture
def aws() -> Iterator[AwsServer]:
    aws = AwsServer()
    with serve(aws.answer) as aws.url:
        yield aws


@pytest.fixture
async def app(services: Services, aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StreamApp]:
    """A Lambda function at the moment of its snapshot."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "spass-dev-use")
    monkeypatch.setenv("AWS_LWA_SNAPSTART_AFTER_RESTORE_PATH", HOOK)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    services.settings = replace(services.settings, keys_path="/spass/dev/")
    monkeypatch.setattr("spass.web.startup.capture_library_logs", lambda: None)
    yield stream_app(
        router, services, warm_up=lambda services: (services.router, services.cascade, services.read_keys(all_models=True))
    )
    await services.aclose()


def client(app: StreamApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def test_two_restored_processes_draw_different_random_numbers(app: StreamApp) -> None:
    snapshot = random.getstate()
    numbers = []
    async with client(app) as caller:
        for _ in range(2):
            random.setstate(snapshot)
            assert (await caller.post(HOOK)).status_code == 204
            numbers.append((await caller.get("/use")).json()["random"])
    assert numbers[0] != numbers[1]


async def test_a_restore_renews_clients_credentials_and_keys(
    app: StreamApp, aws: AwsServer, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(app) as caller:
        assert (await caller.get("/use")).json()["key"] == "first"
        config, stale = services.config, (services.aws, services.router, services.cascade)
        aws.signers.clear()
        aws.key = "second"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
        assert (await caller.post(HOOK)).status_code == 204
        assert (await caller.get("/use")).json()["key"] == "second"
    assert {signer for _, signer in aws.signers} == {"renewed"}
    assert {operation for operation, _ in aws.signers} == {"GetItem", "GetParameters"}
    assert services.config is config, "the files were read again"
    assert not {id(service) for service in stale} & {id(services.aws), id(services.router), id(services.cascade)}


async def test_a_restore_keeps_subscriptions_to_the_bus(app: StreamApp, services: Services) -> None:
    log = EventLog(services.bus)
    async with client(app) as caller:
        assert (await caller.post(HOOK)).status_code == 204
    services.bus.publish(TOOL_CALL_START, lambda: TOOL_CALL)
    assert log.of(TOOL_CALL_START) == [TOOL_CALL]


async def test_a_restore_creates_the_services_before_the_first_request(app: StreamApp, services: Services) -> None:
    async with client(app) as caller:
        await caller.post(HOOK)
    assert {"tokens", "aws", "router", "cascade"} <= services.__dict__.keys()


@pytest.mark.parametrize("case", ["from a caller", "no snapshots", "outside Lambda", "another method"])
async def test_a_caller_cannot_trigger_the_restore_hook(
    app: StreamApp, services: Services, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    headers = {"x-amzn-request-context": "{}"} if case == "from a caller" else {}
    if case == "no snapshots":
        monkeypatch.delenv("AWS_LWA_SNAPSTART_AFTER_RESTORE_PATH")
    if case == "outside Lambda":
        monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME")
    before = services.router
    async with client(app) as caller:
        answer = await caller.request("GET" if case == "another method" else "POST", HOOK, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")
    assert services.router is before


async def test_a_failed_restore_is_logged_and_answers_500(
    services: Services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failures: list[Exception] = []

    def warm_up(_: Services) -> None:
        for failure in failures:
            raise failure

    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "spass-dev-use")
    monkeypatch.setenv("AWS_LWA_SNAPSTART_AFTER_RESTORE_PATH", HOOK)
    monkeypatch.setattr("spass.web.startup.capture_library_logs", lambda: None)
    app = stream_app(router, services, warm_up=warm_up)
    failures.append(KeyError("secret text"))
    async with client(app) as caller:
        assert (await caller.post(HOOK)).status_code == 500
    line = json.loads(capsys.readouterr().out)
    assert (line["event"], "secret text" in str(line)) == ("restore_failed", False)
