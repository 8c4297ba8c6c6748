"""Fuzz a running gateway: every answer must follow the OpenAPI document and reveal no internal details.

Schemathesis generates requests from the OpenAPI document, and ``malformed_requests`` changes valid ones. Normal runs
send the same requests to some of the routes. With ``SPASS_SOAK`` set, a run sends many more new ones to all routes and prints how
to repeat a failure.
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
from spass.core.ids import new_id
from tests.e2e.conftest import Gateway
from tests.e2e.malformed_requests import (
    ADMIN_TOKEN,
    AGENT,
    DOCUMENT,
    FILE,
    GOOD_BODIES,
    GOOD_BYTES,
    INDEX,
    METHODS,
    OPERATOR,
    TOKEN,
    USER,
    WORKSPACE,
    MalformedRequest,
    malformed_requests,
    queries,
    segments,
    token_headers,
    token_of,
)
from tests.e2e.raw_http import Answer, assert_sound, exchange, request_bytes
from tests.sampling import SOAK, sampled

schemathesis.serializer.alias("application/zip", "application/octet-stream")

CONFIG: Final = Path(__file__).with_name("schemathesis.toml")

DOCUMENTATION_PATHS: Final = {"/openapi.json", "/docs", "/docs/{file}", "/", "/ui", "/ui/{asset}"}
ROUTES_IN_DOCUMENT: Final = [route for route in ROUTES if route.path not in DOCUMENTATION_PATHS]
CHECKS: Final = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

# The path parameters, and the sets of them that a generated request takes from existing resources.
NAMES: Final = (
    *("name", "session_id", "index_id", "doc_id", "upload_id", "request_id", "job_id", "model", "message_id"),
    *("workspace_id", "approval_id", "operator_id", "agent_id", "run_id"),
)
SOME_NAMES: Final = frozenset({"name", "index_id", "workspace_id"})
KNOWN: Final = [frozenset(NAMES), frozenset(NAMES), frozenset(NAMES), SOME_NAMES, frozenset[str]()]
NO_APPROVAL: Final = "apr_" + "0" * 26  # tests of approvals decide on real ones

MODEL: Final = GOOD_BODIES["chat.completions"][0]["model"]

Json = Any


def by_name(route: Route) -> str:
    return f"{route.method} {route.path}"


SAMPLE: Final = sampled(ROUTES_IN_DOCUMENT, 4)
"""The routes that this run sends generated and malformed requests to. Four runs send them to all."""


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
    """The gateway under test, and the ids of resources that exist in it."""

    gateway: Gateway
    schema: BaseSchema
    document: Mapping[str, Json]
    http: requests.Session
    session_id: str = ""
    upload_id: str = ""
    request_id: str = ""
    job_id: str = ""
    message_id: str = ""
    agent_id: str = ""
    run_id: str = ""
    secrets: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.gateway.url

    def create_resources(self, route: Route) -> None:
        """Reset the tenant's settings and create the resources that the path of ``route`` names."""
        with self.gateway.client(ADMIN_TOKEN, USER) as admin:
            admin.put("/v1/tenant/config", json=dict.fromkeys(admin.get("/v1/tenant/config").json()["config"])).raise_for_status()
        with self.gateway.client(TOKEN, USER) as client:
            if "{request_id}" in route.path:
                response = client.post("/v1/embeddings", json=GOOD_BODIES["embeddings.create"][0]).raise_for_status()
                self.request_id = response.headers["SPASS-Request-Id"]
            if "{session_id}" in route.path:
                response = client.post(f"/a1/agents/{AGENT}/sessions", json={}).raise_for_status()
                self.session_id = response.json()["id"]
            if "{job_id}" in route.path:
                response = client.post(f"/a1/agents/{AGENT}/sessions", json={"compact_keep_last_n": 0}).raise_for_status()
                session_path = f"/a1/agents/{AGENT}/sessions/{response.json()['id']}"
                client.post(f"{session_path}/messages", json=GOOD_BODIES["sessions.append"][0]).raise_for_status()
                self.job_id = client.post(f"{session_path}/compact").raise_for_status().json()["job_id"]
            if "{message_id}" in route.path:
                self.message_id = new_id("msg")
                body = GOOD_BODIES["streams.create"][0] | {"message_id": self.message_id}
                client.post(f"/c1/agents/{AGENT}/chat", json=body).raise_for_status()
            if "{index_id}" in route.path:
                client.post(f"/a1/rag/indices/{INDEX}/documents", json=GOOD_BODIES["rag.replace"][0]).raise_for_status()
            if "{workspace_id}" in route.path:
                media_type, content = GOOD_BYTES["workspaces.file_put"]
                target, headers = f"/a1/workspaces/{WORKSPACE}/file", {"Content-Type": media_type.decode()}
                client.put(target, params={"path": FILE}, content=content, headers=headers).raise_for_status()
            if "{agent_id}" in route.path:
                response = client.post("/v1/managed-agents", json=GOOD_BODIES["managed.create"][0])
                self.agent_id = response.raise_for_status().json()["id"]
            if "{run_id}" in route.path:
                agent = f"/v1/managed-agents/{self.agent_id}"
                client.post(f"{agent}/messages", json=GOOD_BODIES["managed.message_send"][1]).raise_for_status()
                self.run_id = client.get(f"{agent}/runs").raise_for_status().json()["runs"][0]["id"]
            if "{upload_id}" in route.path:
                response = client.post(f"/a1/rag/indices/{INDEX}/uploads", json=GOOD_BODIES["rag.uploads_create"][0])
                self.upload_id = response.raise_for_status().json()["upload_id"]

    def known(self) -> dict[str, str]:
        values = (AGENT, self.session_id, INDEX, DOCUMENT, self.upload_id, self.request_id, self.job_id, MODEL, self.message_id)
        return dict(zip(NAMES, (*values, WORKSPACE, NO_APPROVAL, OPERATOR, self.agent_id, self.run_id), strict=True))

    def check(self, answer: Answer, route: Route, method: str) -> None:
        """Assert that the answer is sound and that the OpenAPI document lists the status of a success."""
        documented_method = "get" if method == "HEAD" else method.lower()
        operation = self.document["paths"][route.path].get(documented_method, {"responses": {}})
        successes = [int(status) for status in operation["responses"] if status.isdigit()]
        if answer.status == 200 and (method, route.module) == ("POST", "rag.uploads_create"):
            # The answer must contain the address of the bucket: the client uploads there.
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


def test_the_openapi_document_is_valid_and_describes_every_route(fuzz_target: FuzzTarget) -> None:
    fuzz_target.schema.validate()
    documented = {(method.upper(), path) for path, item in fuzz_target.document["paths"].items() for method in item}
    assert documented == {(route.method, route.path) for route in ROUTES_IN_DOCUMENT}
    operations = [operation for item in fuzz_target.document["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for path, item in fuzz_target.document["paths"].items():
        path_parameters = {name for _, name, _, _ in string.Formatter().parse(path) if name}
        for operation in item.values():
            assert {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"} == path_parameters


# A public route takes neither headers nor a body, so no request to it can violate the document.
@pytest.mark.parametrize(
    ("mode", "route"),
    [
        pytest.param(mode, route, id=f"{mode.value}-{by_name(route)}")
        for mode in GenerationMode
        for route in SAMPLE
        if mode is GenerationMode.POSITIVE or not route.public
    ],
)
def test_answers_to_generated_requests_follow_the_openapi_document(
    fuzz_target: FuzzTarget, route: Route, mode: GenerationMode
) -> None:
    operation = fuzz_target.schema[route.path][route.method]
    headers = {"Authorization": f"Bearer {token_of(route)}", "SPASS-User-Id": USER}
    fuzz_target.create_resources(route)

    # Texts at the limit are generated often, and 256 of them take seconds to embed.
    @examples(4 if route.module in {"rag.replace", "rag.append"} else 6, soak=100)
    @given(case=operation.as_strategy(generation_mode=mode), known=st.sampled_from(KNOWN))
    def send(case: Case[Any], known: frozenset[str]) -> None:
        if mode is GenerationMode.POSITIVE:
            _insert_known_values(case, fuzz_target.known(), known, route)
        response = case.call(base_url=fuzz_target.url, session=fuzz_target.http, headers=headers)
        note(f"{response.status_code} {response.content[:300]!r}")
        answer = _answer(response)
        fuzz_target.check(answer, route, case.method)
        must_fail = answer.status < 400 and _violates_document(case)
        checks = _checks(response)
        case.validate_response(response, checks=[*checks, negative_data_rejection] if must_fail else checks)

    send()


def test_answers_to_chains_of_requests_follow_the_openapi_document(fuzz_target: FuzzTarget, tmp_path: Path) -> None:
    """Schemathesis builds chains in which a request uses values of an earlier answer. It applies all its checks to each answer.

    The test runs its command, because the state machines of Hypothesis fail if the gateway answers a repeated chain differently.
    """
    fuzz_target.create_resources(ROUTES_IN_DOCUMENT[0])
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "SPASS-User-Id": USER}
    arguments = ["run", f"{fuzz_target.url}/openapi.json", "--phases", "stateful", "--max-examples", "500" if SOAK else "12"]
    arguments += [f"--header={name}: {value}" for name, value in headers.items()]
    arguments += ["--suppress-health-check", "all", "--request-timeout", "60", "--no-color", *([] if SOAK else ["--seed", "1"])]
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "No issues found" in result.stdout


def _checks(response: Response) -> list[CheckFunction]:
    """Return the checks for the response. A 508 is not a server failure: the caller depth of the request was too large."""
    return [check for check in CHECKS if check is not not_a_server_error or response.status_code != 508]


def _insert_known_values(case: Case[Any], known: Mapping[str, str], names: frozenset[str], route: Route) -> None:
    """Replace generated values of a valid request by ids and names that exist, which a generator would not find."""
    for name in names & set(case.path_parameters or ()):
        case.path_parameters[name] = known[name]
    valid_bodies = GOOD_BODIES.get(route.module)
    if names and valid_bodies and isinstance(case.body, dict):
        for name in {"model", "name"} & valid_bodies[0].keys():
            case.body[name] = valid_bodies[0][name]


def _violates_document(case: Case[Any]) -> bool:
    """Return whether the body or path violates the document. Token and user are valid; unknown parameters are ignored."""
    parts = case.meta.components if case.meta else {}
    return any(
        part.mode.is_negative for location, part in parts.items() if location in {ParameterLocation.BODY, ParameterLocation.PATH}
    )


@pytest.mark.parametrize("route", SAMPLE, ids=by_name)
def test_malformed_requests_are_refused_with_the_error_envelope(fuzz_target: FuzzTarget, route: Route) -> None:
    fuzz_target.create_resources(route)

    @examples(12, soak=500)
    @given(malformed_request=malformed_requests(route, fuzz_target.known()))
    def send(malformed_request: MalformedRequest) -> None:
        data = request_bytes(
            malformed_request.method, malformed_request.target, malformed_request.headers, malformed_request.body
        )
        answer = exchange(fuzz_target.url, data, method=malformed_request.method.decode())
        assert answer is not None
        note(f"{answer.status} {answer.body[:300]!r}")
        fuzz_target.check(answer, route, malformed_request.method.decode())

    send()


@examples(30, soak=2000)
@given(method=METHODS, target=st.lists(segments(()), max_size=7), query=queries())
@example(method=b"GET", target=[b"x" * 70_000], query=b"")
@example(method=b"get", target=[], query=b"")
def test_unknown_paths_are_refused_with_the_error_envelope(
    fuzz_target: FuzzTarget, method: bytes, target: list[bytes], query: bytes
) -> None:
    path = b"/v0/" + b"/".join(target) + query
    answer = exchange(fuzz_target.url, request_bytes(method, path, token_headers()), method=method.decode())
    assert answer is not None
    assert_sound(answer, secrets=fuzz_target.secrets, successes=[], bodiless=method == b"HEAD")
    # The server refuses an unknown method, and a request line over 64 KiB, before it knows the path.
    assert answer.status in ({400, 413} if method == b"get" or len(path) > 60_000 else {404, 405, 413})


def test_the_log_contains_no_failure_and_no_token(fuzz_target: FuzzTarget, log_before: int) -> None:
    log = fuzz_target.gateway.output[log_before:]
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert len(lines) > 200
    assert not [line for line in lines if line["level"] == "error"]
    assert "Traceback" not in log
    assert TOKEN not in log


def _answer(response: Response) -> Answer:
    headers = tuple((name, value) for name, values in response.headers.items() for value in values)
    return Answer(response.status_code, headers, response.content)
