"""An outside fuzzer: whatever is sent to a started gateway, it answers in its contract and keeps its inside to itself.

Requests come from two sources: Schemathesis makes them from the gateway's own OpenAPI document, and the strategies below break
good requests byte by byte. Every day the same ones are sent; ``SPASS_SOAK`` sends new ones, many more, and prints how to repeat a
failure.
"""

import json
import os
import string
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.core.parameters import ParameterLocation
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from infra.routes import ROUTES, Route
from tests.e2e.conftest import Gateway
from tests.e2e.malformed_requests import (
    ADMIN_TOKEN,
    AGENT,
    DOCUMENT,
    GOOD_BODIES,
    INDEX,
    METHODS,
    TOKEN,
    USER,
    MalformedRequest,
    malformed_requests,
    queries,
    segments,
    token_headers,
    token_of,
)
from tests.e2e.raw_http import Answer, assert_sound, exchange, request_bytes

CONFIG: Final = Path(__file__).with_name("schemathesis.toml")
SOAK: Final = bool(os.environ.get("SPASS_SOAK"))

UNDESCRIBED: Final = {"/openapi.json", "/docs", "/docs/{file}"}
DESCRIBED: Final = [route for route in ROUTES if route.path not in UNDESCRIBED]
CHECKS: Final = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

# Which parts of a path name something that exists.
NAMES: Final = ("name", "session_id", "index_id", "doc_id", "upload_id", "request_id", "job_id", "model")
KNOWN: Final = [frozenset(NAMES), frozenset(NAMES), frozenset(NAMES), frozenset({"name", "index_id"}), frozenset[str]()]

MODEL: Final = GOOD_BODIES["chat.completions"][0]["model"]

Json = Any


def by_name(route: Route) -> str:
    return f"{route.method} {route.path}"


every_operation = pytest.mark.parametrize("route", DESCRIBED, ids=by_name)


def examples(everyday: int, *, soak: int) -> settings:
    return settings(
        settings.get_profile("everyday"),
        max_examples=soak if SOAK else everyday,
        derandomize=not SOAK,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


@dataclass
class FuzzTarget:
    """The gateway under fire, with one session, one document and one upload that exist."""

    gateway: Gateway
    schema: BaseSchema
    document: Mapping[str, Json]
    http: requests.Session
    session_id: str = ""
    upload_id: str = ""
    request_id: str = ""
    job_id: str = ""
    secrets: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.gateway.url

    def ground(self, route: Route) -> None:
        """Make sure that there is something for a request to find, and that no setting of an earlier one stands in its way."""
        with self.gateway.client(ADMIN_TOKEN, USER) as admin:
            admin.put("/v1/tenant/config", json=dict.fromkeys(admin.get("/v1/tenant/config").json()["config"])).raise_for_status()
        with self.gateway.client(TOKEN, USER) as client:
            if "{request_id}" in route.path:
                made = client.post("/v1/embeddings", json=GOOD_BODIES["embeddings.create"][0]).raise_for_status()
                self.request_id = made.headers["SPASS-Request-Id"]
            if "{session_id}" in route.path:
                made = client.post(f"/a1/agents/{AGENT}/sessions", json={}).raise_for_status()
                self.session_id = made.json()["id"]
            if "{job_id}" in route.path:
                made = client.post(f"/a1/agents/{AGENT}/sessions", json={"compact_keep_last_n": 0}).raise_for_status()
                at = f"/a1/agents/{AGENT}/sessions/{made.json()['id']}"
                client.post(f"{at}/messages", json=GOOD_BODIES["sessions.append"][0]).raise_for_status()
                self.job_id = client.post(f"{at}/compact").raise_for_status().json()["job_id"]
            if "{index_id}" in route.path:
                client.post(f"/a1/rag/indices/{INDEX}/documents", json=GOOD_BODIES["rag.replace"][0]).raise_for_status()
            if "{upload_id}" in route.path:
                made = client.post(f"/a1/rag/indices/{INDEX}/uploads", json=GOOD_BODIES["rag.uploads_create"][0])
                self.upload_id = made.raise_for_status().json()["upload_id"]

    def known(self) -> dict[str, str]:
        values = (AGENT, self.session_id, INDEX, DOCUMENT, self.upload_id, self.request_id, self.job_id, MODEL)
        return dict(zip(NAMES, values, strict=True))

    def check(self, answer: Answer, route: Route, method: str) -> None:
        """``answer`` is sound, and if it is a success, one that the document knows of ``method`` on this path."""
        described = "get" if method == "HEAD" else method.lower()
        operation = self.document["paths"][route.path].get(described, {"responses": {}})
        successes = [int(status) for status in operation["responses"] if status.isdigit()]
        if answer.status == 200 and (method, route.module) == ("POST", "rag.uploads_create"):
            # It tells where the bucket is: that is its purpose.
            answer = replace(answer, body=json.dumps(answer.json() | {"url": "", "fields": {}}).encode())
        assert_sound(answer, secrets=self.secrets, successes=successes, bodiless=method == "HEAD")


@pytest.fixture(scope="module")
def log_before(gateway: Gateway) -> int:
    return len(gateway.output)


@pytest.fixture(scope="module")
def fuzz_target(gateway: Gateway, log_before: int) -> Iterator[FuzzTarget]:
    with requests.Session() as http:
        http.trust_env = False
        document = http.get(f"{gateway.url}/openapi.json", timeout=30).json()
        schema = schemathesis.openapi.from_dict(document)
        secrets = [TOKEN, ADMIN_TOKEN, str(gateway.home), f":{gateway.port}"]
        yield FuzzTarget(gateway, schema, document, http, secrets=secrets)


def test_the_document_is_valid_and_describes_every_route(fuzz_target: FuzzTarget) -> None:
    fuzz_target.schema.validate()
    described = {(method.upper(), path) for path, item in fuzz_target.document["paths"].items() for method in item}
    assert described == {(route.method, route.path) for route in DESCRIBED}
    operations = [operation for item in fuzz_target.document["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for path, item in fuzz_target.document["paths"].items():
        in_template = {name for _, name, _, _ in string.Formatter().parse(path) if name}
        for operation in item.values():
            assert {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"} == in_template


# A public route takes neither a header nor a body: nothing about a request to it can be wrong.
@pytest.mark.parametrize(
    ("mode", "route"),
    [
        pytest.param(mode, route, id=f"{mode.value}-{by_name(route)}")
        for mode in GenerationMode
        for route in DESCRIBED
        if mode is GenerationMode.POSITIVE or not route.public
    ],
)
def test_requests_made_from_the_document_are_answered_as_it_says(
    fuzz_target: FuzzTarget, route: Route, mode: GenerationMode
) -> None:
    operation = fuzz_target.schema[route.path][route.method]
    headers = {"Authorization": f"Bearer {token_of(route)}", "SPASS-User-Id": USER}
    fuzz_target.ground(route)

    # Texts at the limit are generated often, and 256 of them take seconds to embed.
    @examples(4 if route.module in {"rag.replace", "rag.append"} else 6, soak=100)
    @given(case=operation.as_strategy(generation_mode=mode), known=st.sampled_from(KNOWN))
    def send(case: Case[Any], known: frozenset[str]) -> None:
        if mode is GenerationMode.POSITIVE:
            _ground_case(case, fuzz_target.known(), known, route)
        response = case.call(base_url=fuzz_target.url, session=fuzz_target.http, headers=headers)
        note(f"{response.status_code} {response.content[:300]!r}")
        answer = _answer(response)
        fuzz_target.check(answer, route, case.method)
        must_fail = answer.status < 400 and _is_broken(case)
        checks = _checks(response)
        case.validate_response(response, checks=[*checks, negative_data_rejection] if must_fail else checks)

    send()


def test_chains_of_requests_are_answered_as_the_document_says(fuzz_target: FuzzTarget, tmp_path: Path) -> None:
    """Schemathesis puts requests in a row by what one answers and another takes, and checks each answer in every way it knows.

    Its own command does so: Hypothesis's runner of state machines gives up when the gateway answers a repeated row differently.
    """
    fuzz_target.ground(DESCRIBED[0])
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "SPASS-User-Id": USER}
    arguments = ["run", f"{fuzz_target.url}/openapi.json", "--phases", "stateful", "--max-examples", "500" if SOAK else "12"]
    arguments += [f"--header={name}: {value}" for name, value in headers.items()]
    arguments += ["--suppress-health-check", "all", "--request-timeout", "60", "--no-color", *([] if SOAK else ["--seed", "1"])]
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "No issues found" in ended.stdout


def _checks(response: Response) -> list[CheckFunction]:
    """All checks, but that 508 is not a failure of the gateway: the request came through too many of them."""
    return [check for check in CHECKS if check is not not_a_server_error or response.status_code != 508]


def _ground_case(case: Case[Any], known: Mapping[str, str], chosen: frozenset[str], route: Route) -> None:
    """Let a request that fits the document also name things that exist, which no generator would find."""
    for name in chosen & set(case.path_parameters or ()):
        case.path_parameters[name] = known[name]
    good = GOOD_BODIES.get(route.module)
    if chosen and good and isinstance(case.body, dict):
        for name in {"model", "name"} & good[0].keys():
            case.body[name] = good[0][name]


def _is_broken(case: Case[Any]) -> bool:
    """Whether the document forbids what is sent. (Token and user are right in each case, and unknown parameters are ignored.)"""
    parts = case.meta.components if case.meta else {}
    return any(
        part.mode.is_negative for where, part in parts.items() if where in {ParameterLocation.BODY, ParameterLocation.PATH}
    )


@every_operation
def test_broken_requests_are_refused_in_the_one_envelope(fuzz_target: FuzzTarget, route: Route) -> None:
    fuzz_target.ground(route)

    @examples(12, soak=500)
    @given(broken=malformed_requests(route, fuzz_target.known()))
    def send(broken: MalformedRequest) -> None:
        data = request_bytes(broken.method, broken.target, broken.headers, broken.body)
        answer = exchange(fuzz_target.url, data, method=broken.method.decode())
        assert answer is not None
        note(f"{answer.status} {answer.body[:300]!r}")
        fuzz_target.check(answer, route, broken.method.decode())

    send()


@examples(30, soak=2000)
@given(method=METHODS, target=st.lists(segments(()), max_size=7), query=queries())
@example(method=b"GET", target=[b"x" * 70_000], query=b"")
@example(method=b"get", target=[], query=b"")
def test_paths_of_no_route_are_refused_in_the_one_envelope(
    fuzz_target: FuzzTarget, method: bytes, target: list[bytes], query: bytes
) -> None:
    path = b"/v0/" + b"/".join(target) + query
    answer = exchange(fuzz_target.url, request_bytes(method, path, token_headers()), method=method.decode())
    assert answer is not None
    assert_sound(answer, secrets=fuzz_target.secrets, successes=[], bodiless=method == b"HEAD")
    # The server refuses an unknown method, and a request line over 64 KiB, before it knows the path.
    assert answer.status in ({400, 413} if method == b"get" or len(path) > 60_000 else {404, 405, 413})


def test_the_log_tells_of_no_failure_and_no_token(fuzz_target: FuzzTarget, log_before: int) -> None:
    log = fuzz_target.gateway.output[log_before:]
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert len(lines) > 500
    assert not [line for line in lines if line["level"] == "error"]
    assert "Traceback" not in log
    assert TOKEN not in log


def _answer(response: Response) -> Answer:
    headers = tuple((name, value) for name, values in response.headers.items() for value in values)
    return Answer(response.status_code, headers, response.content)
