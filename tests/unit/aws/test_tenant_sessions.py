"""Tenants' data is reached with the credentials of a session of that tenant, and with no others."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest

from spass.aws import tenant_sessions
from spass.aws.clients import Aws
from spass.aws.tenant_sessions import TenantSessions
from spass.core.errors import InternalError, StorageUnavailable
from spass.core.ids import TenantId
from spass.store.bucket import ObjectMissing
from spass.store.keys import Key
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve

pytestmark = pytest.mark.anyio

ROLE: Final = "arn:aws:iam::111122223333:role/twin"
OWN: Final = "AKIDOWN"
ACME, OTHER = TenantId("acme"), TenantId("other")
HOUR: Final = 3600

Closed = TypeVar("Closed", Aws, TenantSessions)


@dataclass
class Services:
    """STS, DynamoDB and S3. ``sessions`` are the requests to STS, ``signers`` the access keys of the others by service."""

    now: int = 1_800_000_000
    refuses: bool = False
    is_silent: bool = False
    seconds: int = HOUR
    failures: list[HttpAnswer | None] = field(default_factory=list)
    """The first answers of STS. None ends the connection."""
    answers: threading.Event = field(default_factory=threading.Event)
    """STS answers only while this is set."""

    def __post_init__(self) -> None:
        self.answers.set()

    s3_status: int = 200
    listed: tuple[str, ...] | None = ()
    """The keys of the bucket. None refuses a list of them."""
    current: str = "v2"
    """The current version of an object, of which a read without a version is allowed."""
    sessions: list[dict[str, str]] = field(default_factory=list)
    signers: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, request: HttpRequest) -> HttpAnswer | None:
        key, service = _signer(request)
        if service != "sts":
            self.signers.append((service, key))
            return json_answer({}) if service == "dynamodb" else self._s3(request)
        assert key == OWN
        asked = {name: value for name, (value,) in parse_qs(request.body.decode()).items()}
        self.sessions.append(asked)
        self.answers.wait(10)
        if self.failures:
            return self.failures.pop(0)
        if self.is_silent:
            return None
        if self.refuses:
            return HttpAnswer(b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>", 403)
        return HttpAnswer(self._session(asked["Tags.member.1.Value"]).encode(), content_type="text/xml")

    def of(self, service: str) -> list[str]:
        """Return the access keys of the requests to one service."""
        return [key for name, key in self.signers if name == service]

    def _s3(self, request: HttpRequest) -> HttpAnswer:
        query, is_head = parse_qs(urlsplit(request.path).query), request.method == "HEAD"
        status, body, headers = self.s3_status, b"bytes", {"connection": "close"}
        if "list-type" in query and self.listed is not None:
            found = sorted(key for key in self.listed if key.startswith(query["prefix"][0]))[: int(query["max-keys"][0])]
            keys = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in found)
            status, body = 200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>".encode()
        elif is_head and "versionId" not in query:
            status, headers = 200, {**headers, "x-amz-version-id": self.current}
        elif status == 403:
            body = b"<Error><Code>AccessDenied</Code></Error>"
        return HttpAnswer(b"" if is_head else body, status, "application/xml", headers)

    def _session(self, tenant: str) -> str:
        end = datetime.fromtimestamp(self.now + self.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"AccessKeyId": f"ASIA{tenant}{len(self.sessions)}", "SecretAccessKey": "s/+=", "SessionToken": "t/+=="}
        values = "".join(f"<{name}>{value}</{name}>" for name, value in {**fields, "Expiration": end}.items())
        return (
            f"<AssumeRoleResponse><AssumeRoleResult><Credentials>{values}</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )


def _signer(request: HttpRequest) -> tuple[str, str]:
    """Return the access key of a request's signature, and the service for which it was signed."""
    found = re.search(r"Credential=([^/]+)/\d+/[^/]+/([^/]+)/", request.headers["authorization"])
    assert found
    assert ("x-amz-security-token" in request.headers) == found[1].startswith("ASIA")
    return found[1], found[2]


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    services = Services()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", OWN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(tenant_sessions, "now_s", lambda: services.now)
    with serve(services.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield services


@pytest.fixture
async def aws(services: Services) -> AsyncIterator[Aws]:
    async with closing(Aws(table="t", bucket="b", tenant_role=ROLE)) as aws:
        yield aws


@asynccontextmanager
async def closing(clients: Closed) -> AsyncIterator[Closed]:
    yield clients
    clients.close()
    await asyncio.sleep(0)


async def read(aws: Aws, tenant: TenantId) -> None:
    await aws.for_tenant(tenant).table.get(Key(f"T#{tenant}#RAG", "x"))


async def test_a_tenants_items_and_objects_are_reached_in_its_session(aws: Aws, services: Services) -> None:
    for tenant in (ACME, OTHER):
        await read(aws, tenant)
        assert await aws.for_tenant(tenant).objects.get("x") == b"bytes"
    await aws.shared.get(Key("B#model#0", "LIMIT"))
    assert services.of("dynamodb") == ["ASIAacme1", "ASIAother2", OWN]
    assert services.of("s3") == ["ASIAacme1", "ASIAother2"]


async def test_a_session_has_the_tag_of_its_tenant_and_no_other_one(aws: Aws, services: Services) -> None:
    await read(aws, ACME)
    ((asked),) = services.sessions
    assert {name: value for name, value in asked.items() if name.startswith("Tags.")} == {
        "Tags.member.1.Key": "tenant",
        "Tags.member.1.Value": "acme",
    }
    assert (asked["Action"], asked["RoleArn"], asked["DurationSeconds"]) == ("AssumeRole", ROLE, "3600")


async def test_without_the_role_the_process_reaches_the_data_itself(services: Services) -> None:
    async with closing(Aws(table="t", bucket="b")) as aws:
        await read(aws, ACME)
        await aws.for_tenant(ACME).objects.get("x")
    assert services.signers == [("dynamodb", OWN), ("s3", OWN)]
    assert services.sessions == []


async def test_concurrent_callers_share_one_call_of_sts(aws: Aws, services: Services) -> None:
    await asyncio.gather(*(read(aws, ACME) for _ in range(20)))
    await read(aws, ACME)
    assert len(services.sessions) == 1
    assert set(services.of("dynamodb")) == {"ASIAacme1"}


async def test_a_cancelled_caller_does_not_end_the_call_of_the_others(aws: Aws, services: Services) -> None:
    first, second = (asyncio.create_task(read(aws, ACME)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert len(services.sessions) == 1


async def test_a_process_keeps_the_sessions_of_the_sixteen_last_tenants(services: Services) -> None:
    tenants = [TenantId(f"t{number}") for number in range(17)]
    async with closing(TenantSessions(ROLE)) as sessions:
        for tenant in tenants:
            await sessions.get(tenant)
        await sessions.get(tenants[1])
        assert len(services.sessions) == 17
        await sessions.get(tenants[0])
        await sessions.get(tenants[1])
        assert len(services.sessions) == 18


async def test_a_session_is_renewed_twenty_minutes_before_its_end(aws: Aws, services: Services) -> None:
    await read(aws, ACME)
    services.now += HOUR - 20 * 60 - 1
    await read(aws, ACME)
    assert len(services.sessions) == 1
    services.now += 1
    await read(aws, ACME)
    await aws.for_tenant(ACME).objects.get("x")
    assert services.signers[-2:] == [("dynamodb", "ASIAacme2"), ("s3", "ASIAacme2")]


@pytest.mark.parametrize("failure", ["refuses", "is_silent"])
async def test_without_a_session_nothing_is_reached(aws: Aws, services: Services, failure: str) -> None:
    setattr(services, failure, True)
    store = aws.for_tenant(ACME)
    for call in (store.table.get(Key("T#acme#RAG", "x")), store.objects.get("x")):
        with pytest.raises(StorageUnavailable) as refusal:
            await call
        assert refusal.value.retry_after == 1
    assert services.signers == []


async def test_a_refusal_of_sts_is_named_in_the_log(aws: Aws, services: Services) -> None:
    services.refuses = True
    with pytest.raises(StorageUnavailable) as refusal:
        await read(aws, ACME)
    assert isinstance(refusal.value.__cause__, InternalError)
    assert "AccessDenied" in refusal.value.__cause__.message


@pytest.mark.parametrize("failure", ["refuses", "is_silent"])
async def test_a_session_that_cannot_be_renewed_serves_until_its_end(aws: Aws, services: Services, failure: str) -> None:
    await read(aws, ACME)
    setattr(services, failure, True)
    services.now += HOUR - 1
    await read(aws, ACME)
    asked = len(services.sessions)
    await read(aws, ACME)
    assert len(services.sessions) == asked, "it is not asked again at once"
    assert set(services.of("dynamodb")) == {"ASIAacme1"}
    services.now += 1
    with pytest.raises(StorageUnavailable):
        await read(aws, ACME)


@pytest.mark.parametrize(
    "failure",
    [
        None,
        HttpAnswer(b"", 503),
        HttpAnswer(b"<ErrorResponse><Error><Code>Throttling</Code></Error></ErrorResponse>", 400),
    ],
)
async def test_sts_is_asked_once_more_after_a_passing_failure(services: Services, failure: HttpAnswer | None) -> None:
    services.failures = [failure]
    async with closing(TenantSessions(ROLE)) as sessions:
        assert (await sessions.get(ACME)).key.id == "ASIAacme2"


async def test_a_caller_with_a_valid_session_does_not_wait_for_a_slow_renewal(
    aws: Aws, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_sessions, "_PATIENCE_SECONDS", 0.1)
    await read(aws, ACME)
    services.now += HOUR - 60
    services.answers.clear()
    await read(aws, ACME)
    services.now += 30
    services.answers.set()
    monkeypatch.setattr(tenant_sessions, "_PATIENCE_SECONDS", 10)
    await read(aws, ACME)
    assert services.of("dynamodb") == ["ASIAacme1", "ASIAacme1", "ASIAacme2"]
    assert len(services.sessions) == 2


async def test_both_attempts_together_take_limited_time(aws: Aws, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_sessions, "_MAX_CALL_SECONDS", 0.1)
    services.answers.clear()
    with pytest.raises(StorageUnavailable):
        await read(aws, ACME)
    services.answers.set()
    assert services.signers == []


@pytest.mark.parametrize("seconds", [1, 600])
async def test_a_short_session_is_not_renewed_at_each_access(aws: Aws, services: Services, seconds: int) -> None:
    services.seconds = seconds
    for _ in range(3):
        await read(aws, ACME)
    assert len(services.sessions) == 1
    services.now += 30
    await read(aws, ACME)
    assert len(services.sessions) == 2


async def test_a_session_that_has_ended_reaches_nothing(aws: Aws, services: Services) -> None:
    services.seconds = 0
    with pytest.raises(StorageUnavailable):
        await read(aws, ACME)
    assert services.signers == []


async def test_an_id_with_a_wildcard_gets_no_session(services: Services) -> None:
    for name in ("*", "acm?", "${aws:userid}", "a/b", "a#b", "acme\n", ""):
        with pytest.raises(PermissionError):
            await TenantSessions(ROLE).get(TenantId(name))
    assert services.sessions == []


async def test_a_refused_object_is_missing_if_a_list_has_none(aws: Aws, services: Services) -> None:
    services.s3_status, services.listed = 403, ("T/acme/x2", "uploads/acme/x/y")
    store = aws.for_tenant(ACME)
    for call in (store.objects.get("x"), anext(store.uploads.blocks("x", None, 0, 1)), store.uploads.head("x", "v1")):
        with pytest.raises(ObjectMissing):
            await call


@pytest.mark.parametrize("listed", [("T/acme/x", "uploads/acme/x"), None])
async def test_a_refused_object_that_may_exist_is_not_a_missing_one(
    aws: Aws, services: Services, listed: tuple[str, ...] | None
) -> None:
    services.s3_status, services.listed = 403, listed
    store = aws.for_tenant(ACME)
    for call in (store.objects.get("x"), anext(store.uploads.blocks("x", None, 0, 1)), store.uploads.head("x", "v2")):
        with pytest.raises(InternalError):
            await call


async def test_an_older_version_that_is_refused_is_missing(aws: Aws, services: Services) -> None:
    services.s3_status, services.listed = 403, ("uploads/acme/x",)
    with pytest.raises(ObjectMissing):
        await aws.for_tenant(ACME).uploads.head("x", "v1")


async def test_a_refused_list_and_a_refusal_without_a_session_are_errors(aws: Aws, services: Services) -> None:
    services.s3_status, services.listed = 403, None
    with pytest.raises(InternalError):
        await aws.for_tenant(ACME).objects.list_keys("x")
    with pytest.raises(InternalError):
        await Aws(table="t", bucket="b").for_tenant(ACME).objects.get("x")


async def test_a_form_ends_with_the_session_that_signs_it(aws: Aws, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.aws.clients.now_s", lambda: services.now)
    moment = lambda: datetime.fromtimestamp(services.now, UTC)  # noqa: E731
    monkeypatch.setattr("botocore.signers.get_current_datetime", moment)

    async def seconds_valid(asked: int) -> int:
        form = await aws.for_tenant(ACME).uploads.presign("i/a.md", size=1, content_type="text/plain", seconds=asked)
        assert form.fields["x-amz-credential"].startswith("ASIAacme")
        return form.expires_at - services.now

    assert await seconds_valid(2 * HOUR) == HOUR
    services.now += 1000
    assert await seconds_valid(2 * HOUR) == HOUR - 1000
    assert await seconds_valid(600) == 600
