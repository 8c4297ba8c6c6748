"""A page of another origin and another user of this machine attack every port that `make run` opens."""

import datetime as dt
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from local.emulator import STACK
from tests.e2e.conftest import Gateway

EVIL: Final = "https://evil.example"
LIST_TABLES: Final = {"X-Amz-Target": "DynamoDB_20120810.ListTables", "Content-Type": "application/x-amz-json-1.0"}
FUNCTION: Final = json.dumps(
    {"FunctionName": "evil", "Role": "arn:aws:iam::000000000000:role/x", "Runtime": "python3.13", "Handler": "x.y", "Code": {}}
)


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process and its children listen."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    inodes = {
        match[1]
        for process in [str(pid), *children]
        for link in Path(f"/proc/{process}/fd").iterdir()
        if (match := re.fullmatch(r"socket:\[(\d+)\]", _target(link)))
    }
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def send(port: int, method: str, path: str, headers: Mapping[str, str], body: str = "") -> httpx.Response:
    return httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, content=body, timeout=30, trust_env=False)


def sign(gateway: Gateway, url: str, body: str, *, secret: str | None = None, host: str | None = None) -> dict[str, str]:
    """Return the headers of a signed call of ListTables."""
    found = gateway.aws_environment()
    request = AWSRequest("POST", url, data=body.encode(), headers=dict(LIST_TABLES) | ({"Host": host} if host else {}))
    credentials = Credentials(found["AWS_ACCESS_KEY_ID"], secret or found["AWS_SECRET_ACCESS_KEY"])
    SigV4Auth(credentials, "dynamodb", found["AWS_REGION"]).add_auth(request)
    return dict(request.headers.items())


@pytest.fixture(scope="module")
def aws(gateway: Gateway) -> str:
    """Return the URL of the emulated AWS."""
    return gateway.aws_environment()["AWS_ENDPOINT_URL"]


@pytest.fixture(scope="module")
def form(gateway: Gateway) -> Mapping[str, Any]:
    body = {"filename": "a.md", "content_type": "text/markdown", "size": 100}
    with gateway.client() as client:
        form: Mapping[str, Any] = client.post("/a1/rag/indices/attacked/uploads", json=body).raise_for_status().json()
        return form


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only /proc tells on which ports a process listens")
@pytest.mark.parametrize("caller", [{}, {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}], ids=["local user", "page"])
@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("POST", "/", LIST_TABLES, "{}"),
        ("POST", "/", {**LIST_TABLES, "X-Amz-Target": "DynamoDB_20120810.GetItem"}, '{"TableName": "t", "Key": {}}'),
        ("POST", "/", {"Authorization": "AWS4-HMAC-SHA256 Credential=local/20260101/eu-central-1/dynamodb/aws4_request"}, "{}"),
        ("POST", "/2015-03-31/functions", {"Content-Type": "text/plain"}, FUNCTION),
        ("POST", "/2015-03-31/functions/spass-local-worker-jobs/invocations", {}, "{}"),
        ("POST", "/_ministack/reset", {}, ""),
        ("GET", "/_localstack/health", {}, ""),
        ("GET", "/", {}, ""),
        ("PUT", "/spass-local/uploads/demo/evil/a.md", {}, "evil"),
        ("POST", "/worker-sweep", {"X-Amzn-Lambda-Deadline-Ms": "9999999999999"}, "{}"),
        ("POST", "/guessed/worker-sweep", {"X-Amzn-Lambda-Deadline-Ms": "9999999999999"}, "{}"),
    ],
)
def test_no_port_but_the_gateways_answers_an_unsigned_call(
    gateway: Gateway, caller: Mapping[str, str], method: str, path: str, headers: Mapping[str, str], body: str
) -> None:
    ports = listening_ports(gateway.pid)
    assert {gateway.port, httpx.URL(gateway.aws_environment()["AWS_ENDPOINT_URL"]).port} < {*ports}
    for port in ports:
        if port != gateway.port:
            answer = send(port, method, path, {**headers, **caller}, body)
            assert answer.status_code >= 400, (port, answer.text)
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("asked", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/2015-03-31/functions", "/spass-local-bucket", "/spass-local-bucket/key"])
def test_no_preflight_of_another_origin_is_allowed(aws: str, path: str, asked: str) -> None:
    headers = {"Origin": EVIL, "Access-Control-Request-Method": asked, "Access-Control-Request-Headers": "x-amz-target"}
    answer = httpx.options(f"{aws}{path}", headers=headers, trust_env=False)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_only_posts_to_a_bucket_are_allowed_to_the_gateways_page(gateway: Gateway, aws: str, form: Mapping[str, Any]) -> None:
    for origin in (gateway.url, f"http://localhost:{gateway.port}"):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        answer = httpx.options(form["url"], headers=asked, trust_env=False)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, origin)
        assert httpx.options(aws, headers=asked, trust_env=False).status_code == 403
        put = httpx.options(form["url"], headers={**asked, "Access-Control-Request-Method": "PUT"}, trust_env=False)
        assert put.status_code == 403


def test_a_signed_call_is_answered_and_a_changed_one_is_not(gateway: Gateway, aws: str) -> None:
    host = httpx.URL(aws).netloc.decode()
    headers = sign(gateway, aws, "{}")
    assert httpx.post(aws, headers=headers, content="{}", trust_env=False).status_code == 200

    def status(body: str = "{}", **changes: str) -> int:
        return httpx.post(aws, headers=headers | changes, content=body, trust_env=False).status_code

    assert status('{"Limit": 1}') == 403
    assert status(**{"X-Amz-Target": "DynamoDB_20120810.Scan"}) == 403
    assert status(**{"X-Amz-Security-Token": "x"}) == 403, "the signature must cover every header that AWS reads"
    assert status(Host="evil.example") == 403
    assert status(Origin=EVIL) == 403
    assert status(Origin=gateway.url) == 403, "the page has no key"
    wrong = sign(gateway, aws, "{}", secret="local")
    assert httpx.post(aws, headers=wrong, content="{}", trust_env=False).status_code == 403
    for other in ("evil.example", host.replace("127.0.0.1", "evil.example"), "127.0.0.1:1"):
        signed = sign(gateway, aws, "{}", host=other)
        assert httpx.post(aws, headers=signed, content="{}", trust_env=False).status_code == 403


def test_a_signature_is_valid_for_minutes(gateway: Gateway, aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for minutes, status in ((-20, 403), (-2, 200), (2, 200), (20, 403)):
        moment = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)
        monkeypatch.setattr("botocore.auth.get_current_datetime", lambda moment=moment: moment.replace(tzinfo=None))
        assert httpx.post(aws, headers=sign(gateway, aws, "{}"), content="{}", trust_env=False).status_code == status


def test_the_gateways_key_cannot_create_a_function_or_change_the_bucket(gateway: Gateway, form: Mapping[str, Any]) -> None:
    functions, s3 = gateway.aws_client("lambda"), gateway.aws_client("s3")
    bucket = form["url"].rstrip("/").rpartition("/")[2]
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    with pytest.raises(ClientError, match="AccessDenied"):
        functions.create_function(
            FunctionName="evil",
            Role="arn:aws:iam::000000000000:role/x",
            Code={"ZipFile": b"x"},
            Runtime="python3.13",
            Handler="x.y",
        )
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.put_bucket_policy(Bucket=bucket, Policy=policy)
    with pytest.raises(ClientError, match="AccessDenied"):
        gateway.aws_client("iam").list_users()


def test_the_gateways_key_can_create_no_other_stack(gateway: Gateway, form: Mapping[str, Any]) -> None:
    stacks, s3 = gateway.aws_client("cloudformation"), gateway.aws_client("s3")
    bucket = form["url"].rstrip("/").rpartition("/")[2]
    template = json.dumps({"Resources": {"Evil": {"Type": "AWS::SNS::Topic"}}})
    s3.put_object(Bucket=bucket, Key="evil.json", Body=template)
    for source in ({"TemplateBody": template}, {"TemplateURL": f"{form['url'].rstrip('/')}/evil.json"}):
        with pytest.raises(ClientError, match="AccessDenied"):
            stacks.create_stack(StackName="evil", **source)
        with pytest.raises(ClientError, match="AccessDenied"):
            stacks.update_stack(StackName=STACK, **source)
    assert [stack["StackName"] for stack in stacks.describe_stacks()["Stacks"]] == [STACK]


def _post(form: Mapping[str, Any], *, fields: Mapping[str, str] | None = None, **headers: str) -> httpx.Response:
    files = {"file": ("a.md", b"# Evil")}
    data = dict(form["fields"]) if fields is None else dict(fields)
    return httpx.post(form["url"], data=data, files=files, headers=headers, timeout=30, trust_env=False)


def test_a_presigned_form_of_another_origin_or_with_another_signature_is_refused(
    gateway: Gateway, form: Mapping[str, Any]
) -> None:
    fields: Mapping[str, str] = form["fields"]
    assert _post(form, Origin=EVIL).status_code == 403
    assert _post(form, Origin="null").status_code == 403
    assert _post(form, Host="evil.example").status_code == 403
    assert _post(form, fields={"key": fields["key"]}).status_code == 403
    assert _post(form, fields={**fields, "x-amz-signature": "0" * 64}).status_code == 403
    assert _post(form, fields={**fields, "policy": "e30="}).status_code == 403
    assert _post(form, fields={**fields, "key": "uploads/other/evil/a.md"}).status_code == 403
    assert _post({**form, "url": form["url"] + "/key"}).status_code == 403
    assert _post({**form, "url": form["url"] + "?policy"}).status_code == 403


@pytest.mark.parametrize("late", [("key", "uploads/other/evil/a.md"), ("policy", "e30="), ("file", "evil")])
def test_a_form_with_a_field_twice_or_after_the_file_is_refused(form: Mapping[str, Any], late: tuple[str, str]) -> None:
    def part(name: str, value: str) -> str:
        disposition = f'form-data; name="{name}"' + ('; filename="a.md"' if name == "file" else "")
        return f"--edge\r\nContent-Disposition: {disposition}\r\n\r\n{value}\r\n"

    signed = [part(name, value) for name, value in form["fields"].items()]
    file = part("file", "# Evil")
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    for parts in ([*signed, file, part(*late)], [*signed, part(*late), file]):
        answer = httpx.post(form["url"], content="".join([*parts, "--edge--\r\n"]), headers=headers, trust_env=False)
        assert answer.status_code == 403, answer.text


NAMED: Final = 'Content-Disposition: form-data; name="%s"'


def _write(form: Mapping[str, Any], *, head: str = NAMED, more: str = "", file: str = "# Text") -> str:
    """Return a form with the boundary ``edge`` whose parts have ``head``, with ``more`` before the file."""
    signed = "".join(f"--edge\r\n{head.replace('%s', name)}\r\n\r\n{value}\r\n" for name, value in form["fields"].items())
    return f'{signed}{more}--edge\r\n{NAMED % "file"}; filename="a.md"\r\n\r\n{file}\r\n--edge--\r\n'


def _send(form: Mapping[str, Any], content: str | bytes, *, kind: str = "multipart/form-data; boundary=edge") -> httpx.Response:
    return httpx.post(form["url"], content=content, headers={"Content-Type": kind}, timeout=30, trust_env=False)


def _read_object(gateway: Gateway, form: Mapping[str, Any], key: str) -> bytes | None:
    bucket = form["url"].rstrip("/").rpartition("/")[2]
    try:
        return bytes(gateway.aws_client("s3").get_object(Bucket=bucket, Key=key)["Body"].read())
    except ClientError:
        return None


@pytest.mark.parametrize("head", [NAMED, f"Content-Type: text/plain; charset=UTF-8\r\n{NAMED}", f"{NAMED}\r\nContent-Type: a/b"])
@pytest.mark.parametrize("file", ["# Text", "", "\r\n", "--edge", "--edge--\r\n", "\r\n-edge\r\n\r\n", 'name="key"\r\n\r\nx'])
def test_an_ordinary_form_writes_its_file_unchanged(gateway: Gateway, form: Mapping[str, Any], head: str, file: str) -> None:
    answer = _send(form, _write(form, head=head, file=file))
    assert answer.status_code == 204, answer.text
    assert _read_object(gateway, form, form["fields"]["key"]) == file.encode()


OTHER: Final = "uploads/other/evil/a.md"


@pytest.mark.parametrize(
    "head",
    [
        f'{NAMED}\r\n Content-Disposition: form-data; name="x-ignore-%s"',
        f'{NAMED}\r\n\tContent-Disposition: form-data; name="x-ignore-%s"',
        f'{NAMED}\r\nContent-Disposition : form-data; name="x-ignore-%s"',
        f'{NAMED}\r\nX: y\nContent-Disposition: form-data; name="x-ignore-%s"',
        f'{NAMED}\nContent-Disposition: form-data; name="x-ignore-%s"',
        f'{NAMED}\r\nContent-Type: a/b\rContent-Disposition: form-data; name="x-ignore-%s"',
        f"{NAMED}\r\n; name=x-ignore-%s",
        f"{NAMED}; name=x-ignore-%s",
        f"{NAMED}; name*=UTF-8''x-ignore-%s",
        f'{NAMED}; filename="a\\"; name="x-ignore-%s"',
        f'{NAMED}; filename="a; name=x"; filename="b"',
        f'{NAMED}; charset="UTF-16"',
        'Content-Disposition: form-data; name="x-ignore-\\"%s"',
        'Content-Disposition: form-data; filename="name=x-ignore-a"; name="%s"',
        "Content-Disposition: form-data; name=%s",
        'Content-Disposition: attachment; name="%s"',
        f"{NAMED}\r\nContent-Transfer-Encoding: base64",
        f"{NAMED}\r\n{NAMED}",
        f"{NAMED}\r\nContent-Type: a/b\r\nContent-Type: c/d",
    ],
)
def test_a_part_with_two_names_or_other_headers_is_refused(gateway: Gateway, form: Mapping[str, Any], head: str) -> None:
    second = f'--edge\r\n{NAMED % "x-ignore-key"}\r\n Content-Disposition: form-data; name="key"\r\n\r\n{OTHER}\r\n'
    assert _send(form, _write(form, head=head)).status_code == 403
    assert _send(form, _write(form, head=head, more=second)).status_code == 403
    assert _send(form, _write(form, more=second)).status_code == 403
    assert _read_object(gateway, form, OTHER) is None


def test_a_form_whose_parts_can_be_read_in_two_ways_is_refused(gateway: Gateway, form: Mapping[str, Any]) -> None:
    good = _write(form)
    other = f"--edge\r\n{NAMED % 'key'}\r\n\r\n{OTHER}\r\n"
    nested = f"--edge\r\n{NAMED % 'x'}\r\nContent-Type: multipart/mixed; boundary=in\r\n\r\n--in\r\n\r\n--in--\r\n"
    for content in (
        f"preamble\r\n{good}",
        f"\r\n{good}",
        f"{other}{good}",
        f"{good}{other}",
        f"{good}epilogue",
        good.removesuffix("--edge--\r\n"),
        good.replace("\r\n", "\n"),
        good.replace("--edge\r\n", "--edge \r\n"),
        _write(form, more=other),
        _write(form, more=other.replace('"key"', '"KEY"')),
        _write(form, more=other.replace('"key"', '"acl"')),
        _write(form, more=other.replace('"key"', '"bucket"')),
        _write(form, more=nested),
        _write(form, file=f"# Text\r\n{other}"),
        _write(form, file="# Text\r\n--edgeless"),
        _write({"fields": {**form["fields"], "x-ignore-a": "${filename}"}}),
    ):
        assert _send(form, content).status_code == 403, content
    for kind in (
        'multipart/form-data; boundary="edge',
        "multipart/form-data; boundary=edge; charset=utf-16",
        "multipart/form-data; boundary=edge; boundary=other",
        "multipart/form-data; boundary=edg",
        "multipart/mixed; boundary=edge",
    ):
        assert _send(form, good, kind=kind).status_code == 403, kind
    assert _read_object(gateway, form, OTHER) is None


def test_the_emulator_never_sees_the_boundary_of_the_client(gateway: Gateway, form: Mapping[str, Any]) -> None:
    value = f'x\r\n-edge\r\nContent-Disposition: form-data; name="key"\r\n\r\n{OTHER}'
    ignored = f"--edge\r\n{NAMED % 'x-ignore-a'}\r\n\r\n{value}\r\n"
    assert _send(form, _write(form, more=ignored)).status_code == 204
    assert _read_object(gateway, form, OTHER) is None


def test_the_size_of_a_forms_file_is_held(gateway: Gateway, form: Mapping[str, Any]) -> None:
    assert _send(form, _write(form, file="a" * 100)).status_code == 204
    for size in (101, 200_000):
        answer = _send(form, _write(form, file="b" * size))
        assert (answer.status_code, "EntityTooLarge" in answer.text) == (400, True)
    assert _read_object(gateway, form, form["fields"]["key"]) == b"a" * 100


def test_the_gateways_page_may_post_a_form_and_read_the_answer(gateway: Gateway, form: Mapping[str, Any]) -> None:
    answer = _post(form, Origin=gateway.url)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, gateway.url)


def test_the_gateway_refuses_the_name_of_another_domain(gateway: Gateway) -> None:
    with gateway.client() as client:
        for host in ("evil.example", f"evil.example:{gateway.port}", "127.0.0.1.evil.example", "localhost@evil.example"):
            answer = client.get("/v1/models", headers={"Host": host})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
            assert "SPASS_ALLOWED_HOSTS" in answer.json()["error"]["message"]
        for host in ("localhost", f"LOCALHOST:{gateway.port}", "[::1]:80", "127.0.0.1"):
            assert client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_other_users_cannot_read_the_state(gateway: Gateway) -> None:
    assert gateway.home.stat().st_mode & 0o077 == 0
    assert (gateway.home / "aws.config").stat().st_mode & 0o077 == 0
