"""The client of DynamoDB gives the results and errors that boto3's gives, and never hangs."""

import asyncio
import base64
import calendar
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from spass.aws.dynamodb import _REFUSALS as REFUSALS
from spass.aws.dynamodb_client import DynamoDBClient, RequestRefused
from spass.aws.error_translation import storage_errors
from spass.core.errors import InternalError, StorageUnavailable
from tests.unit.aws.dynamodb_server import CLOSE, DRIP, SILENCE, Action, DynamoDBServer, Response, dynamodb_server, refusal
from tests.unit.certificates import self_signed

pytestmark = pytest.mark.anyio

KEY: Final = {"pk": {"S": "T#demo#A"}, "sk": {"S": "B"}}
ITEM: Final = {**KEY, "n": {"N": "7"}, "bytes": {"B": "AAH/"}, "set": {"SS": ["a", "ß"]}}
REQUESTS: Final[Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]]] = {
    "GetItem": ("get_item", {"TableName": "t", "Key": KEY}, {"Item": ITEM}),
    "Query": ("query", {"TableName": "t", "KeyConditionExpression": "pk = :pk"}, {"Items": [ITEM, ITEM], "Count": 2}),
    "PutItem": ("put_item", {"TableName": "t", "Item": {**KEY, "text": {"S": "\ud83d \u0000 ß"}}}, {}),
    "DeleteItem": ("delete_item", {"TableName": "t", "Key": KEY, "ReturnValues": "ALL_OLD"}, {"Attributes": ITEM}),
    "TransactWriteItems": (
        "transact_write_items",
        {"TransactItems": [{"Delete": {"TableName": "t", "Key": KEY}}], "ClientRequestToken": "token"},
        {},
    ),
}
"""By operation: the method of boto3, the request, and the answer."""
SILENCE_SECONDS: Final = 1.5


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr("random.uniform", lambda low, _: low)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)


@asynccontextmanager
async def connected(
    actions: Sequence[Action] = (),
) -> AsyncIterator[tuple[DynamoDBServer, DynamoDBClient]]:
    """Yield a server and a client of it."""
    async with dynamodb_server(actions) as server:
        client = client_of(server.url)
        yield server, client
        client.close()
        await asyncio.sleep(0)


def client_of(url: str, *, silence_seconds: float = SILENCE_SECONDS) -> DynamoDBClient:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        client = DynamoDBClient(silence_seconds=silence_seconds)
        client.prepare()
    return client


def boto3_outcome(url: str, method: str, request: Mapping[str, Any]) -> object:
    """Return the result of a call by boto3, or the error that the gateway made of it."""
    limits = Config(connect_timeout=1, read_timeout=SILENCE_SECONDS, retries={"mode": "standard", "total_max_attempts": 3})
    client = boto3.client("dynamodb", endpoint_url=url, config=limits.merge(Config(parameter_validation=False)))
    try:
        with storage_errors():
            try:
                answer = getattr(client, method)(**request)
            except ClientError as error:
                if (code := error.response["Error"]["Code"]) in REFUSALS:
                    return code
                raise
    except (StorageUnavailable, InternalError) as error:
        return type(error)
    finally:
        client.close()
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


async def outcome(client: DynamoDBClient, operation: str, request: Mapping[str, Any]) -> object:
    try:
        return await client.call(operation, request, REFUSALS)
    except RequestRefused as error:
        return error.code
    except (StorageUnavailable, InternalError) as error:
        return type(error)


def known_to_boto3(result: object, expected: object) -> object:
    """Return the fields of ``result`` that boto3 returned too, with decoded bytes: it leaves out those of other operations."""
    if isinstance(result, dict) and isinstance(expected, dict):
        return {name: _decoded(value) for name, value in result.items() if name in expected}
    return result


def _decoded(value: object) -> object:
    match value:
        case {"B": str(text)}:
            return {"B": base64.b64decode(text)}
        case dict():
            return {name: _decoded(inner) for name, inner in value.items()}
        case list():
            return list(map(_decoded, value))
    return value


HALF: Final = Response(b'{"Item": {}}', sent=5)
TROUBLES: Final[Mapping[str, Callable[[Response], Sequence[Action]]]] = {
    "an answer": lambda answer: [answer],
    "closed at once": lambda answer: [CLOSE, answer],
    "closed three times": lambda _: [CLOSE] * 3,
    "silent once": lambda answer: [SILENCE, answer],
    "silent three times": lambda _: [SILENCE] * 3,
    "half an answer": lambda answer: [HALF, answer],
    "half an answer three times": lambda _: [HALF] * 3,
    "no HTTP": lambda answer: [b"nonsense\r\n\r\n", answer],
    "an error of the service": lambda answer: [refusal("InternalServerError", 500), answer],
    "errors of the service": lambda _: [refusal("InternalServerError", 500)] * 3,
    "a gateway's error": lambda answer: [Response(b"<html>", 502), answer],
    "gateway's errors": lambda _: [Response(b"", 503)] * 3,
    "throttled": lambda answer: [refusal("ProvisionedThroughputExceededException"), answer],
    "throttled for a minute": lambda _: [refusal("ThrottlingException")] * 3,
    "too many requests": lambda _: [refusal("RequestLimitExceeded")] * 3,
    "a failed condition": lambda _: [refusal("ConditionalCheckFailedException", Item=ITEM)],
    "a conflict": lambda _: [refusal("TransactionConflictException")],
    "a cancelled transaction": lambda _: [refusal("TransactionCanceledException", CancellationReasons=[{"Code": "None"}])],
    "no permission": lambda _: [refusal("AccessDeniedException")],
    "a wrong expression": lambda _: [refusal("ValidationException")],
    "no table": lambda _: [refusal("ResourceNotFoundException")],
    "a wrong key": lambda _: [refusal("UnrecognizedClientException")],
    "an expired token": lambda _: [refusal("ExpiredTokenException")],
    "an error without a code": lambda _: [Response({}, 400)],
    "a code without a service": lambda _: [Response({"__type": "ValidationException"}, 400)],
    "a code with an address": lambda _: [Response({"__type": "a#ConditionalCheckFailedException:http://x/"}, 400)],
    "an error that is not JSON": lambda _: [Response(b"no", 400)],
    "an empty answer": lambda answer: [Response(closes=True), answer],
    "an answer of 16 MB": lambda _: [Response({"Item": {"text": {"S": "x" * 2**24}}})],
    "closed after the answer": lambda answer: [Response(answer.content, closes=True)],
    "a continue before the answer": lambda answer: [b"HTTP/1.1 100 Continue\r\n\r\n" + answer.encode()],
    "the end as the end of the body": lambda _: [b"HTTP/1.1 200 OK\r\n\r\n{}"],
    "chunks": lambda _: [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"],
    "half of the chunks three times": lambda _: [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n"] * 3,
    "a refusal after an error": lambda _: [refusal("InternalServerError", 500), refusal("ConditionalCheckFailedException")],
    "a permission after silence": lambda _: [SILENCE, refusal("AccessDeniedException")],
    "redirected": lambda _: [Response({}, 307)],
    "an unknown error": lambda _: [refusal("SomethingNewException", 418)],
    "an unknown error of the service": lambda _: [refusal("SomethingNewException", 500)] * 3,
    "two errors": lambda answer: [CLOSE, Response(b"", 500), answer],
}


@pytest.mark.parametrize("operation", REQUESTS)
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_call_ends_as_with_boto3(operation: str, trouble: str) -> None:
    method, request, content = REQUESTS[operation]
    actions = TROUBLES[trouble](Response(content))
    async with dynamodb_server(actions) as theirs:
        expected = await asyncio.to_thread(boto3_outcome, theirs.url, method, request)
    async with connected(actions) as (ours, client):
        assert known_to_boto3(await outcome(client, operation, request), expected) == expected
    assert len(ours.requests) == len(theirs.requests)
    assert [request.body for request in ours.requests] == [request.body for request in theirs.requests]
    for name in ("x-amz-target", "content-type"):
        assert [request.headers[name] for request in ours.requests] == [request.headers[name] for request in theirs.requests]


LARGE: Final = 2**64 + 1
JSON_INPUTS: Final[Mapping[str, tuple[Mapping[str, Any], bytes]]] = {
    "an integer of more than 64 bits": ({"Limit": LARGE}, b'{"Count": 1}'),
    "half of a surrogate pair": ({"ExclusiveStartKey": {"pk": {"S": "\udead"}}}, b'{"Items": [{"text": {"S": "\\udead x"}}]}'),
    "a surrogate pair": ({"ExclusiveStartKey": {"pk": {"S": "\U0001f600"}}}, b'{"Items": [{"text": {"S": "\\ud83d\\ude00"}}]}'),
    "NaN": ({}, b'{"Items": [{"n": {"N": "1"}}], "ConsumedCapacity": {"CapacityUnits": NaN}}'),
    "an infinite number": ({}, b'{"Items": [], "ConsumedCapacity": {"CapacityUnits": -Infinity}}'),
    "a number of 38 digits": ({}, b'{"Items": [{"n": {"N": "12345678901234567890123456789012345678"}}]}'),
    "a key twice": ({}, b'{"Count": 1, "Count": 2}'),
    "control characters": ({"ExclusiveStartKey": {"pk": {"S": "\u0000\u001f\u007f\u2028\ufeff"}}}, b'{"Items": []}'),
    "a byte order mark": ({}, b'\xef\xbb\xbf{"Count": 3}'),
}
"""By what is special in it: the fields of a request, and an answer."""


@pytest.mark.parametrize("special", JSON_INPUTS)
async def test_special_texts_and_numbers_are_read_and_written_as_by_boto3(special: str) -> None:
    fields, body = JSON_INPUTS[special]
    request = {"TableName": "t", "KeyConditionExpression": "pk = :pk", **fields}
    async with dynamodb_server([Response(body)]) as theirs:
        expected = await asyncio.to_thread(boto3_outcome, theirs.url, "query", request)
    async with connected([Response(body)]) as (ours, client):
        assert repr(known_to_boto3(await outcome(client, "Query", request), expected)) == repr(expected)  # NaN equals nothing
    assert [request.body for request in ours.requests] == [request.body for request in theirs.requests]


async def get(client: DynamoDBClient) -> dict[str, Any]:
    return await client.call("GetItem", {"TableName": "t", "Key": KEY}, REFUSALS)


async def test_calls_in_a_row_share_a_connection() -> None:
    async with connected() as (server, client):
        for _ in range(5):
            await get(client)
    assert server.connections == 1


async def test_a_connection_that_died_while_nobody_used_it_costs_no_attempt() -> None:
    async with connected([Response(), CLOSE, CLOSE, CLOSE, Response({"Item": ITEM})]) as (server, client):
        await get(client)
        assert await get(client) == {"Item": ITEM}
    assert len(server.requests) == 5


async def test_a_connection_that_the_server_closes_after_its_answer_is_not_used_again() -> None:
    async with connected() as (server, client):
        server.closes_after_answer = True
        for _ in range(3):
            await get(client)
    assert len(server.requests) == server.connections == 3


async def test_an_endpoint_that_sends_a_byte_now_and_then_is_given_up() -> None:
    async with connected([DRIP] * 3) as (server, client):
        with pytest.raises(StorageUnavailable):
            await get(client)
    assert len(server.requests) == 3


async def test_nobody_listens() -> None:
    async with dynamodb_server() as server:
        url = server.url
    with pytest.raises(StorageUnavailable):
        await get(client_of(url))


async def test_a_cancelled_call_leaves_no_connection_behind() -> None:
    async with connected([Response(), SILENCE, Response({"Item": ITEM})]) as (server, client):
        await get(client)
        call = asyncio.create_task(get(client))
        await asyncio.sleep(SILENCE_SECONDS / 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await get(client) == {"Item": ITEM}
        assert server.requests[-1].connection == 2
        await asyncio.sleep(0.05)
        assert server.open == 1


async def test_fifty_connections_are_the_most() -> None:
    async with connected() as (server, client):
        server.delay = 0.02
        await asyncio.gather(*(get(client) for _ in range(130)))
    assert server.most_open == 50
    assert len(server.requests) == 130


async def test_no_thread_waits_for_a_call() -> None:
    async with connected() as (server, client):
        await get(client)
        before = threading.active_count()
        server.delay = 0.05
        calls = [asyncio.create_task(get(client)) for _ in range(200)]
        await asyncio.sleep(0.03)
        assert threading.active_count() == before
        await asyncio.gather(*calls)


async def test_a_damaged_answer_is_asked_for_again() -> None:
    async with connected([Response({"Item": {}}, checksum=1), Response({"Item": ITEM})]) as (_, client):
        assert await get(client) == {"Item": ITEM}
    async with connected([Response({"Item": {}}, checksum=1)] * 3) as (_, client):
        with pytest.raises(StorageUnavailable):
            await get(client)


async def test_a_damaged_refusal_is_asked_for_again() -> None:
    damaged = Response({"__type": "ConditionalCheckFailedException"}, 400, checksum=1)
    async with connected([damaged, Response({"Item": ITEM})]) as (_, client):
        assert await get(client) == {"Item": ITEM}


async def test_half_of_a_surrogate_pair_in_an_answer_is_read() -> None:
    async with connected([Response(b'{"Item": {"text": {"S": "\\ud83d"}}}')]) as (_, client):
        assert await get(client) == {"Item": {"text": {"S": "\ud83d"}}}


async def test_an_answer_that_is_nested_too_deeply_is_none() -> None:
    async with connected([Response(b"[" * 100_000)] * 3) as (_, client):
        with pytest.raises(StorageUnavailable):
            await get(client)


@pytest.mark.parametrize("minutes", [-10, 10, 600])
async def test_a_clock_that_is_wrong_is_corrected(minutes: int) -> None:
    at_aws = time.time() + 60 * minutes
    refused = Response({"__type": "InvalidSignatureException"}, 400, date=formatdate(at_aws, usegmt=True))
    async with connected([refused]) as (server, client):
        await get(client)
        await get(client)
    first, *later = (request.headers["x-amz-date"] for request in server.requests)
    assert len(later) == 2
    for signed in later:
        assert signed != first
        assert abs(_seconds(signed) - at_aws) < 30


async def test_a_clock_that_is_wrong_is_corrected_for_concurrent_calls() -> None:
    refused = Response({"__type": "InvalidSignatureException"}, 400, date=formatdate(time.time() + 3600, usegmt=True))
    async with connected([refused] * 5) as (server, client):
        server.delay = 0.05
        assert await asyncio.gather(*(get(client) for _ in range(5))) == [{}] * 5


@pytest.mark.parametrize("date", ["", ",", "1 Jan 99999999999999 00:00:00 GMT", "Mon"])
async def test_a_date_that_is_none_corrects_nothing(date: str) -> None:
    refused = Response({"__type": "InvalidSignatureException"}, 400, headers={"date": date})
    async with connected([refused]) as (_, client):
        with pytest.raises(InternalError):
            await get(client)


async def test_a_wrong_key_is_not_taken_for_a_wrong_clock() -> None:
    refused = Response({"__type": "InvalidSignatureException"}, 400, date=formatdate(time.time(), usegmt=True))
    async with connected([refused]) as (server, client):
        with pytest.raises(InternalError):
            await get(client)
    assert len(server.requests) == 1


def _seconds(signed: str) -> float:
    return calendar.timegm(time.strptime(signed, "%Y%m%dT%H%M%SZ"))


async def test_calls_are_not_repeated_while_nearly_all_fail() -> None:
    async with connected() as (server, client):
        server.default = refusal("ThrottlingException")
        for _ in range(100):
            with pytest.raises(StorageUnavailable):
                await get(client)
        assert len(server.requests) == 100 + 500 // 5
        server.default = Response()
        await asyncio.gather(*(get(client) for _ in range(10)))
        server.actions = [CLOSE, Response()]
        await get(client)


async def test_a_retry_after_a_timeout_costs_twice_as_much() -> None:
    async with dynamodb_server() as server:
        server.default = SILENCE
        client = client_of(server.url, silence_seconds=0.02)
        for _ in range(60):
            with pytest.raises(StorageUnavailable):
                await get(client)
        assert len(server.requests) == 60 + 500 // 10
        client.close()


@pytest.mark.parametrize(
    ("failure", "connections"),
    [
        (refusal("ThrottlingException"), 1),
        (refusal("InternalServerError", 500), 1),
        (Response({"Item": {}}, checksum=1), 1),
        (Response(b"", 503, closes=True), 2),
        (CLOSE, 2),
        (HALF, 2),
    ],
)
async def test_only_a_retry_after_a_dead_connection_opens_a_new_one(failure: Action, connections: int) -> None:
    async with connected([failure, Response({"Item": ITEM})]) as (server, client):
        assert await get(client) == {"Item": ITEM}
    assert server.connections == connections


async def test_a_retry_after_a_dead_connection_uses_no_idle_one() -> None:
    async with connected([Response(), Response(), HALF, Response({"Item": ITEM})]) as (server, client):
        server.delay = 0.05
        await asyncio.gather(get(client), get(client))
        assert await get(client) == {"Item": ITEM}
    assert server.requests[-1].connection == server.connections == 3


async def test_a_session_token_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token/of+a=session")
    async with connected() as (server, client):
        await get(client)
    headers = server.requests[0].headers
    assert headers["x-amz-security-token"] == "token/of+a=session"
    assert "x-amz-security-token" in headers["authorization"]


@pytest.mark.parametrize("token", ["token\n", "token\r\nx-evil: 1", "t€ken"])
async def test_a_token_with_a_line_break_is_not_sent(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (server, _):
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(StorageUnavailable):
            await get(DynamoDBClient())
        assert server.requests == []


async def test_no_credentials_are_an_unavailable_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/missing")
    async with connected() as (server, client):
        with pytest.raises(StorageUnavailable):
            await get(client)
    assert server.requests == []


async def test_calls_of_two_event_loops_do_not_share_connections() -> None:
    async with connected() as (server, client):
        await get(client)
        await asyncio.to_thread(asyncio.run, _get_and_close(client))
        await get(client)
    assert [request.connection for request in server.requests] == [1, 2, 1]


async def _get_and_close(client: DynamoDBClient) -> None:
    await get(client)
    client.close()
    await asyncio.sleep(0)


async def test_the_certificate_must_be_trusted_and_name_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with dynamodb_server([Response({"Item": ITEM})], context=context) as server:
        with pytest.raises(StorageUnavailable):
            await get(client_of(server.url))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        client = client_of(server.url)
        assert await get(client) == {"Item": ITEM}
        assert await get(client) == {}
        client.close()
        await asyncio.sleep(0)
        with pytest.raises(StorageUnavailable):
            await get(client_of(server.url.replace("127.0.0.1", "localhost")))
    assert [request.connection for request in server.requests] == [server.requests[0].connection] * 2


def _subject_hash(certificate: Path) -> str:
    """Return the name under which OpenSSL looks for a certificate in a folder."""
    command = ["openssl", "x509", "-noout", "-hash", "-in", str(certificate)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return shown.stdout.strip()


async def test_the_trusted_certificates_may_be_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    folder = tmp_path / "trusted"
    folder.mkdir()
    (folder / f"{_subject_hash(certificate)}.0").write_bytes(certificate.read_bytes())
    monkeypatch.setenv("AWS_CA_BUNDLE", str(folder))
    async with dynamodb_server([Response({"Item": ITEM})], context=context) as server:
        client = client_of(server.url)
        assert await get(client) == {"Item": ITEM}
        client.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_certificates_that_cannot_be_read_are_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_bytes(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    with pytest.raises(InternalError, match="AWS_CA_BUNDLE"):
        client_of("https://127.0.0.1:1")


@pytest.mark.parametrize(
    "url", ["localhost:8000", "127.0.0.1", "//host", "ftp://host", "http://", "http://host:port", "http://[::1"]
)
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"])
def test_an_endpoint_that_is_not_a_url_is_named(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, url)
    with pytest.raises(InternalError, match=f"^{name} must be a URL"):
        DynamoDBClient().prepare()


@pytest.mark.parametrize(
    ("region", "variables"),
    [
        ("eu-central-1", {}),
        ("cn-north-1", {}),
        ("us-gov-west-1", {"AWS_USE_FIPS_ENDPOINT": "true"}),
        ("us-east-1", {"AWS_REGION": "eu-central-1"}),
        ("us-east-1", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}),
        ("us-east-1", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1/path"}),
        ("us-east-1", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_DYNAMODB": "https://table.example:8443"}),
    ],
)
def test_the_endpoint_is_that_of_boto3(region: str, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"AWS_REGION": region, "AWS_DEFAULT_REGION": region} | dict(variables)).items():
        monkeypatch.setenv(name, value)
    client = DynamoDBClient()
    assert client.service.url == boto3.client("dynamodb").meta.endpoint_url
