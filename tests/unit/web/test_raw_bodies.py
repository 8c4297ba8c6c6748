"""Bodies that are bytes arrive unchanged, or the answer says which Content-Type to send."""

import asyncio
import base64
from typing import Any

import httpx
import pytest

from infra.routes import BINARY_MEDIA_TYPES
from spass.web.bodies import ARCHIVE_TYPE, FILE_TYPE, MAX_BODY_BYTES
from spass.web.http_function import lambda_handler
from spass.web.services import Services
from tests.unit.web.conftest import TOKEN, routes

pytestmark = pytest.mark.anyio

USER = {"SPASS-User-Id": "ada"}
FILE = {**USER, "Content-Type": FILE_TYPE}
ARCHIVE = {**USER, "Content-Type": ARCHIVE_TYPE}


def test_api_gateway_passes_the_media_types_of_raw_bodies_on_unchanged() -> None:
    assert set(BINARY_MEDIA_TYPES) == {FILE_TYPE, ARCHIVE_TYPE}


@pytest.mark.parametrize(
    "body", [b"", b"  ", b"\x00\xff\xfe", b"{", b'{"user_id": "bob"}', b'{"user_id": null, "a": NaN}', bytes(range(256)) * 999]
)
async def test_a_raw_body_is_neither_parsed_nor_changed(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.put("/a1/file", content=body, headers=FILE)
    assert (answer.status_code, answer.content) == (200, body)


@pytest.mark.parametrize(
    "content_type", ["application/octet-stream; charset=utf-8", "Application/Octet-Stream", ' application/octet-stream;a="b;c"']
)
async def test_parameters_and_case_of_the_content_type_do_not_matter(client: httpx.AsyncClient, content_type: str) -> None:
    answer = await client.put("/a1/file", content=b"\xff", headers={**USER, "Content-Type": content_type})
    assert (answer.status_code, answer.content) == (200, b"\xff")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/zip",
        "text/plain",
        "multipart/form-data; boundary=x",
        "",
        ";",
        "application/octet-stream+json",
    ],
)
async def test_another_content_type_is_refused_with_the_one_to_send(client: httpx.AsyncClient, content_type: str) -> None:
    answer = await client.put("/a1/file", content=b"{}", headers={**USER, "Content-Type": content_type})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", "Content-Type")
    assert content_type[:100] in error["message"]
    assert FILE_TYPE in error["message"]
    assert "API Gateway" in error["message"]


async def test_a_missing_or_a_repeated_content_type_is_refused(client: httpx.AsyncClient) -> None:
    for repeated in ([], [("Content-Type", ARCHIVE_TYPE)] * 2, [("Content-Type", ARCHIVE_TYPE), ("Content-Type", "text/plain")]):
        answer = await client.put("/a1/archive", content=b"PK", headers=[*USER.items(), *repeated])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        assert ARCHIVE_TYPE in answer.json()["error"]["message"]


async def test_a_raw_body_has_at_most_4_mib(client: httpx.AsyncClient) -> None:
    largest = await client.put("/a1/archive", content=b"\xff" * MAX_BODY_BYTES, headers=ARCHIVE)
    assert (largest.status_code, largest.json()["size"]) == (200, MAX_BODY_BYTES)
    for headers in (ARCHIVE, USER):
        answer = await client.put("/a1/archive", content=b"\xff" * (MAX_BODY_BYTES + 1), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


async def test_errors_before_the_body_come_first_also_for_raw_bodies(client: httpx.AsyncClient) -> None:
    for headers, query, code in (
        ({"Authorization": ""}, "", "missing_token"),
        ({"SPASS-User-Id": ""}, "", "user_id_required"),
        ({}, "?user_id=bob", "user_id_not_allowed"),
        ({"SPASS-Caller-Depth": "3"}, "", "recursion_depth_exceeded"),
    ):
        answer = await client.put(f"/a1/file{query}", content=b"{", headers={**USER, "Content-Type": "text/plain", **headers})
        assert answer.json()["error"]["code"] == code


def _event(body: str | None, *, encoded: bool) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}", **FILE}
    return {
        "resource": "/a1/file",
        "path": "/a1/file",
        "httpMethod": "PUT",
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "requestContext": {"path": "/prod/a1/file"},
        "body": body,
        "isBase64Encoded": encoded,
    }


def test_a_body_that_api_gateway_decoded_as_text_is_refused(services: Services, loop: asyncio.AbstractEventLoop) -> None:
    *_, files, _ = routes()
    handler = lambda_handler(files, services)
    for body, encoded, status in (
        (base64.b64encode(b"\xff").decode(), True, 200),
        (None, False, 200),  # an empty file
        ("\N{REPLACEMENT CHARACTER}", False, 400),
        ("text", False, 400),
    ):
        assert handler(_event(body, encoded=encoded), None)["statusCode"] == status  # type: ignore[arg-type]
