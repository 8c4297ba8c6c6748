"""Presigned forms at the front of the emulated AWS: what reaches the emulator, under which policy, in how much memory."""

import base64
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from starlette.types import Message, Receive, Scope, Send

from local.aws_front import AwsFront
from local.signatures import ALGORITHM, AccessKey, sign

pytestmark = pytest.mark.anyio

KEY: Final = AccessKey("SPASSTEST", "secret")
HOST: Final = "127.0.0.1:4566"
BUCKET: Final = "spass-local-bucket"
CREDENTIAL: Final = f"{KEY.id}/20260131/eu-central-1/s3/aws4_request"
SIGNING: Final = {"x-amz-credential": CREDENTIAL, "x-amz-algorithm": ALGORITHM, "x-amz-date": "20260131T000000Z"}
UPLOAD: Final = {"key": "uploads/demo/a.md", "content-type": "text/markdown"}
CONDITIONS: Final[Sequence[object]] = (
    {"bucket": BUCKET},
    ["eq", "$key", UPLOAD["key"]],
    ["starts-with", "$Content-Type", "text/"],
    ["content-length-range", 1, 10],
    *({name: value} for name, value in SIGNING.items()),
)
MEBIBYTE: Final = 2**20


class Emulator:
    """An emulator that keeps what it is sent."""

    forms: list[bytes]

    def __init__(self) -> None:
        self.forms = []

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        self.forms.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def signed(fields: Mapping[str, str] = UPLOAD, conditions: Sequence[object] = CONDITIONS, *, minutes: int = 5) -> dict[str, str]:
    expiration = (dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    policy = base64.b64encode(json.dumps({"expiration": expiration, "conditions": conditions}).encode()).decode()
    signature = sign(policy, KEY, "20260131", "eu-central-1", "s3")
    return {**fields, **SIGNING, "policy": policy, "x-amz-signature": signature}


def form(fields: Mapping[str, str], file: bytes = b"# Text") -> bytes:
    parts = [f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()]
    head = "".join([*parts, '--edge\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'])
    return head.encode() + file + b"\r\n--edge--\r\n"


async def post(emulator: Emulator, body: bytes, *, endless: bool = False) -> tuple[int, str, int]:
    """Send a form, which has no end if ``endless``. Return the answer's status and text, and how many bytes were read."""
    read = 0
    chunks = [body[at : at + MEBIBYTE] for at in range(0, len(body), MEBIBYTE)]
    sent: list[Message] = []

    async def receive() -> Message:
        nonlocal read
        chunk = chunks.pop(0) if chunks else b"a" * MEBIBYTE
        read += len(chunk)
        assert read < 32 * MEBIBYTE, "the front reads a form without an end"
        return {"type": "http.request", "body": chunk, "more_body": endless or bool(chunks)}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", HOST.encode()), (b"content-type", b"multipart/form-data; boundary=edge")]
    scope = {"type": "http", "method": "POST", "raw_path": f"/{BUCKET}".encode(), "query_string": b"", "headers": headers}
    front = AwsFront(emulator, key=KEY, hosts=[HOST], origins=[], region="eu-central-1", templates=[])
    await front(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode(), read


async def test_the_emulator_gets_a_form_that_the_front_wrote() -> None:
    emulator = Emulator()
    fields = signed()
    assert (await post(emulator, form(fields)))[0] == 204
    (written,) = emulator.forms
    assert b"edge" not in written
    own = written.partition(b"\r\n")[0]
    expected = [
        b'\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value.encode())
        for name, value in fields.items()
    ]
    file = b'\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n\r\n# Text\r\n'
    assert written.split(own) == [b"", *expected, file, b"--\r\n"]


@pytest.mark.parametrize(
    ("fields", "conditions", "message"),
    [
        ({**UPLOAD, "key": "uploads/other/a.md"}, CONDITIONS, "value of key"),
        ({**UPLOAD, "content-type": "image/png"}, CONDITIONS, "value of content-type"),
        ({**UPLOAD, "acl": "public-read"}, CONDITIONS, "no condition for these fields: acl"),
        ({**UPLOAD, "bucket": "other"}, CONDITIONS, "another bucket"),
        ({"content-type": "text/plain"}, CONDITIONS, "no key"),
        (UPLOAD, CONDITIONS[1:], "no condition for these fields: bucket"),
        (UPLOAD, [{"bucket": "other"}, *CONDITIONS[1:]], "value of bucket"),
        (UPLOAD, [*CONDITIONS, {"acl": "private"}], "value of acl"),
        (UPLOAD, [one for one in CONDITIONS if "content-length-range" not in one], "no content-length-range"),  # type: ignore[operator]
        (UPLOAD, [*CONDITIONS, ["ends-with", "$key", "md"]], "malformed"),
        (UPLOAD, [*CONDITIONS, []], "malformed"),
        (UPLOAD, [*CONDITIONS, ["content-length-range", "x", 1]], "malformed"),
    ],
)
async def test_a_form_that_does_not_meet_its_policy_is_refused(
    fields: Mapping[str, str], conditions: Sequence[object], message: str
) -> None:
    emulator = Emulator()
    status, text, _ = await post(emulator, form(signed(fields, conditions)))
    assert (status, message in text) == (403, True), text
    assert emulator.forms == []


async def test_an_expired_form_is_refused_and_so_is_one_with_a_variable() -> None:
    emulator = Emulator()
    assert (await post(emulator, form(signed(minutes=-1))))[0] == 403
    conditions = [*CONDITIONS, ["starts-with", "$x-amz-meta-a", ""]]
    assert (await post(emulator, form(signed({**UPLOAD, "x-amz-meta-a": "${filename}"}, conditions))))[0] == 403
    assert (await post(emulator, form(signed({**UPLOAD, "x-amz-meta-a": "a"}, conditions))))[0] == 204
    assert len(emulator.forms) == 1


@pytest.mark.parametrize(("size", "answer"), [(0, "EntityTooSmall"), (1, ""), (10, ""), (11, "EntityTooLarge")])
async def test_the_policy_bounds_the_size_of_the_file(size: int, answer: str) -> None:
    emulator = Emulator()
    status, text, _ = await post(emulator, form(signed(), b"a" * size))
    assert status == (400 if answer else 204)
    assert answer in text
    assert len(emulator.forms) == (0 if answer else 1)


async def test_the_front_stops_reading_at_the_size_that_the_policy_allows() -> None:
    status, text, read = await post(Emulator(), form(signed()).removesuffix(b"\r\n--edge--\r\n"), endless=True)
    assert (status, "EntityTooLarge" in text) == (400, True)
    assert read < 2 * MEBIBYTE
    large = [["content-length-range", 0, 5 * MEBIBYTE] if "content-length-range" in one else one for one in CONDITIONS]  # type: ignore[operator]
    emulator = Emulator()
    assert (await post(emulator, form(signed(conditions=large), b"a" * 5 * MEBIBYTE)))[0] == 204
    status, _, read = await post(emulator, form(signed(conditions=large), b"a" * 4 * MEBIBYTE), endless=True)
    assert (status, read < 7 * MEBIBYTE, len(emulator.forms)) == (400, True, 1)


async def test_the_front_stops_reading_fields_that_do_not_end() -> None:
    for body in (b"", b"--edge\r\n", form({"key": "a" * 70_000}), b"--edge\r\nContent-Disposition: "):
        status, _, read = await post(Emulator(), body, endless=True)
        assert (status, read < 3 * MEBIBYTE) == (403, True)
