"""Compare signatures with those of boto3's own client."""

import asyncio
import json
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import boto3
import botocore.auth
import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import ClientError, CredentialRetrievalError

from spass.aws.signing import Signer, SigningFailed

pytestmark = pytest.mark.anyio

SIGNING_TIME = datetime(2026, 4, 30, 8, 14, 22, tzinfo=UTC)
MODELS = [
    "amazon.titan-embed-text-v1",
    "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile/a1b2c3d4e5f6",
]


@pytest.fixture(autouse=True)
def _use_environment_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/missing")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/missing")


def set_signing_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: SIGNING_TIME)
    monkeypatch.setattr(time, "time", SIGNING_TIME.timestamp)


def as_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _RequestCaught(Exception):
    pass


def boto3_request(model: str) -> AWSPreparedRequest:
    """Return the request that boto3's client for Bedrock sends."""
    sent: list[AWSPreparedRequest] = []

    def catch(request: AWSPreparedRequest, **_: object) -> None:
        sent.append(request)
        raise _RequestCaught

    client = boto3.Session().client("bedrock-runtime", region_name="eu-central-1")
    client.meta.events.register("before-send.bedrock-runtime.Converse", catch)
    with pytest.raises(_RequestCaught):
        client.converse(modelId=model, messages=[{"role": "user", "content": [{"text": "Grüße"}]}])
    return sent[0]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("token", [None, "session+token=="])
async def test_a_request_is_signed_like_by_boto3(model: str, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    set_signing_time(monkeypatch)
    expected = boto3_request(model)
    headers = {name.lower(): as_text(value) for name, value in expected.headers.items()}
    names = headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    signature_headers = {"host", "x-amz-date", "x-amz-security-token"}
    signed = {name: headers[name] for name in names if name not in signature_headers}

    url = f"https://bedrock-runtime.eu-central-1.amazonaws.com/model/{quote(model, safe='')}/converse"
    assert expected.url == url
    body = expected.body
    assert isinstance(body, bytes)
    assert len(body) > 0
    signature = await Signer("bedrock", "eu-central-1").sign("POST", url, body, signed)
    assert {name.lower(): value for name, value in signature.items()} == {
        name: headers[name] for name in ("authorization", "x-amz-date", "x-amz-security-token") if name in headers
    }


async def test_only_the_headers_of_the_signature_are_returned() -> None:
    signature = await Signer("bedrock", "eu-central-1").sign("POST", "https://x.example/y", b"", {"content-type": "a"})
    assert {name.lower() for name in signature} == {"authorization", "x-amz-date"}


async def test_signing_without_credentials_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(SigningFailed):
        await Signer("bedrock", "eu-central-1").sign("POST", "https://x.example/y", b"", {})


@pytest.mark.parametrize(
    ("argument", "variables", "region"),
    [
        ("us-west-2", {"AWS_REGION": "eu-west-1"}, "us-west-2"),
        (None, {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-1"),
        (None, {"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3"),
    ],
)
def test_the_region_is_the_argument_or_that_of_the_environment(
    argument: str | None, variables: dict[str, str], region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Signer("bedrock", argument).region == region


def test_signing_without_a_region_fails() -> None:
    with pytest.raises(SigningFailed):
        _ = Signer("bedrock").region


async def test_signing_with_an_unknown_profile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "unknown")
    signer = Signer("bedrock")
    with pytest.raises(SigningFailed):
        _ = signer.region
    with pytest.raises(SigningFailed):
        await signer.sign("POST", "https://x.example/y", b"", {})


async def test_boto3_renews_expired_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")  # the environment's credentials are never renewed

    def renew() -> dict[str, str]:
        return {"access_key": "AKIDRENEWED", "secret_key": "s", "token": "t", "expiry_time": "2999-01-01T00:00:00Z"}

    credentials = RefreshableCredentials("AKIDOLD", "s", "t", datetime(2000, 1, 1, tzinfo=UTC), renew, "test")
    monkeypatch.setattr(boto3.Session, "get_credentials", lambda _: credentials)
    signature = await Signer("bedrock", "eu-central-1").sign("POST", "https://x.example/y", b"", {})
    assert "Credential=AKIDRENEWED/" in signature["authorization"]


@pytest.mark.parametrize(
    "failure",
    [
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "AssumeRole"),
        CredentialRetrievalError(provider="test", error_msg="no"),
        RuntimeError("still expired"),
    ],
)
async def test_signing_with_credentials_that_cannot_be_renewed_fails(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")  # the environment's credentials are never renewed

    def renew() -> dict[str, str]:
        raise failure

    credentials = RefreshableCredentials("AKIDOLD", "s", "t", datetime(2000, 1, 1, tzinfo=UTC), renew, "test")
    monkeypatch.setattr(boto3.Session, "get_credentials", lambda _: credentials)
    with pytest.raises(SigningFailed):
        await Signer("bedrock", "eu-central-1").sign("POST", "https://x.example/y", b"", {})


async def test_concurrent_first_requests_look_for_credentials_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    searches = []

    def search(_: boto3.Session) -> Credentials:
        searches.append(1)
        time.sleep(0.05)
        return Credentials("AKIDFOUND", "s")

    monkeypatch.setattr(boto3.Session, "get_credentials", search)
    signer = Signer("bedrock", "eu-central-1")
    await asyncio.gather(*(signer.sign("POST", "https://x.example/y", b"", {}) for _ in range(10)))
    assert len(searches) == 1


class ContainerEndpoint(BaseHTTPRequestHandler):
    """The endpoint that gives a container, or a function restored from a snapshot, its credentials. They expire ``seconds`` after
    each request. ``tokens`` are the tokens of the requests."""

    seconds = 0
    tokens: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.tokens.append(str(self.headers["Authorization"]))
        expires = datetime.fromtimestamp(time.time() + self.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = json.dumps(
            {
                "AccessKeyId": f"AKID{len(self.tokens)}",
                "SecretAccessKey": "secret",
                "Token": f"session{len(self.tokens)}",
                "Expiration": expires,
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.parametrize(
    ("seconds", "keys", "tokens"),
    [(3600, ["AKID1", "AKID1"], ["token1"]), (5 * 60, ["AKID2", "AKID3"], ["token1", "token1", "token2"])],
)
async def test_credentials_of_a_container_are_read_and_renewed(
    seconds: int, keys: list[str], tokens: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lambda gives a function that it restores from a snapshot such an endpoint, instead of keys in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(ContainerEndpoint, "seconds", seconds)
    monkeypatch.setattr(ContainerEndpoint, "tokens", [])
    token = tmp_path / "token"
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    with ThreadingHTTPServer(("127.0.0.1", 0), ContainerEndpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_address[1]}/credentials")
        signer = Signer("dynamodb", "eu-central-1")
        for number, key in enumerate(keys, 1):
            token.write_text(f"token{number}")
            signature = await signer.sign("POST", "https://x.example/y", b"", {})
            assert f"Credential={key}/" in signature["authorization"]
            assert signature["x-amz-security-token"] == key.replace("AKID", "session")
        server.shutdown()
    assert ContainerEndpoint.tokens == tokens
