"""``docs/headers.md`` names every header that the code reads or sends."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.functions.gateway import Gateway

ROOT: Final = Path(__file__).parents[2]
HEADER: Final = re.compile(
    r"[A-Z][A-Za-z]*(?:-[A-Z][A-Za-z]*)+|Allow|Authorization|ETag|Location|Prefer|Vary|x-should-retry|spass-augment|prefer"
    r"|authorization|idempotency-key|content-(?:type|length)|traceparent"
)
OF_THE_EDGE: Final = {"accept-encoding", "content-encoding", "x-amzn-remapped-www-authenticate"}
"""API Gateway, and the laptop's edge in its place, read and send these."""
ADA: Final = {"SPASS-User-Id": "ada"}


def rows(section: str) -> set[str]:
    """Return the names in the first column of the table of ``section``, in lower case."""
    page = (ROOT / "docs" / "headers.md").read_text()
    table = page.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"(?m)^\| (`.+?) \|", table)
    assert len(cells) == len(re.findall(r"(?m)^\|", table)) - 2, "a row of the table does not match the pattern"
    return {name.lower() for cell in cells for name in re.findall("`([^`]+)`", cell)}


def names_in_code() -> Iterator[str]:
    for folder in ("shared/spass/web", "functions"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                    text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                    if HEADER.fullmatch(text):
                        yield text.lower()


def test_the_page_has_the_headers_that_the_code_names_and_no_others() -> None:
    assert rows("Requests") | rows("Answers") == set(names_in_code()) | (OF_THE_EDGE - {"x-amzn-remapped-www-authenticate"})


def test_the_page_has_the_request_headers_of_the_api() -> None:
    paths = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    parameters = [one for path in paths.values() for method in path.values() for one in method.get("parameters", ())]
    described = {one["name"].lower() for one in parameters if one["in"] == "header"}
    assert "last-event-id" in described
    assert described <= rows("Requests")


REQUESTS: Final[Mapping[str, tuple[str, str, object, Mapping[str, str]]]] = {
    "a chat": ("POST", "/a1/agents/plain/chat", {"message": "Hello"}, ADA),
    "a repeated chat": ("POST", "/a1/agents/plain/chat", {"message": "Hello"}, {**ADA, "Idempotency-Key": "k"}),
    "a stream": ("POST", "/c1/agents/plain/chat", {"message": "Hello", "message_id": "m-1"}, ADA),
    "a completion": ("POST", "/v1/chat/completions", {"model": "small", "messages": [{"role": "user", "content": "?"}]}, {}),
    "a bad body": ("POST", "/v1/chat/completions", {"model": "small"}, {}),
    "a wrong token": ("GET", "/v1/models", None, {"Authorization": "Bearer no-token"}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_have_no_header_that_the_page_lacks(gateway: Gateway, name: str) -> None:
    method, path, body, headers = REQUESTS[name]
    for _ in range(2):
        reply = gateway.send(method, path, token="demo-token", headers=headers, body=body)
        assert "spass-request-id" in reply.headers
        assert {header.lower() for header in reply.headers} <= rows("Answers") | OF_THE_EDGE
