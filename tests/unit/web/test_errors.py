"""Each failure has the same envelope, and each branch of the error tree has its own status."""

import json
from collections.abc import Iterator

import httpx
import pytest

from infra.routes import NO_SUCH_ROUTE
from spass.core import errors
from spass.core.errors import SpassError
from spass.core.ids import RequestId
from spass.web.errors import HTTP_ERROR_TYPES, error_response, http_error_type

pytestmark = pytest.mark.anyio

CONTRACT = {
    400: {
        *("invalid_request", "user_id_required", "user_id_invalid", "user_id_not_allowed", "invalid_augment"),
        *("session_agent_mismatch", "context_length_exceeded", "upstream_rejected", "input_refused"),
        *("too_many_documents", "document_too_large", "duplicate_document_id"),
        *("invalid_path", "invalid_archive", "workspace_limit"),
    },
    401: {"missing_token", "invalid_token"},
    403: {"model_not_allowed", "admin_required", "above_ceiling"},
    404: {
        *("agent_not_found", "session_not_found", "index_not_found", "document_not_found"),
        *("model_not_found", "tool_not_found", "upload_not_found", "job_not_found", "request_not_found", "route_not_found"),
        "stream_not_found",
        *("workspace_not_found", "file_not_found", "version_not_found", "approval_not_found"),
        *("operator_not_found", "run_not_found"),
    },
    405: {"method_not_allowed"},
    409: {
        *(
            "session_busy",
            "compaction_in_progress",
            "session_archived",
            "nothing_to_compact",
            "compaction_disabled",
            "embedding_model_mismatch",
            "idempotency_in_progress",
        ),
        *("confirm_token_invalid", "confirm_token_expired"),
        *("workspace_conflict", "approval_decided", "preview_not_seen"),
        *("nothing_to_run", "agent_paused", "too_many_schedules"),
    },
    413: {"payload_too_large"},
    422: {"idempotency_key_reused"},
    429: {"rate_limited", "budget_exceeded"},
    500: {"internal_error"},
    502: {"upstream_error", "summary_failed"},
    503: {
        *("no_backend_available", "storage_unavailable", "turn_lost", "sandbox_unavailable", "kind_unavailable"),
        "page_not_built",
    },
    504: {"upstream_timeout"},
    508: {"recursion_depth_exceeded"},
}


def leaves(kind: type[SpassError] = SpassError) -> Iterator[type[SpassError]]:
    for child in kind.__subclasses__():
        if child.code and child.__module__ == errors.__name__:
            yield child
        yield from leaves(child)


def test_each_error_code_has_the_status_of_the_contract() -> None:
    codes: dict[int, set[str]] = {}
    for leaf in leaves():
        codes.setdefault(http_error_type(leaf("no")).status, set()).add(leaf.code)
    assert codes == CONTRACT


def test_each_branch_of_the_tree_has_its_own_status() -> None:
    assert set(SpassError.__subclasses__()) == set(HTTP_ERROR_TYPES)
    assert len({kind.status for kind in HTTP_ERROR_TYPES.values()}) == len(HTTP_ERROR_TYPES)


def test_the_envelope_has_every_field() -> None:
    error = errors.TooManyDocuments("Too many.", param="documents", details={"max": 256})
    response = error_response(error, RequestId("req_1"))
    assert json.loads(bytes(response.body)) == {
        "error": {
            "code": "too_many_documents",
            "message": "Too many.",
            "type": "invalid_request_error",
            "param": "documents",
            "details": {"max": 256},
        },
        "request_id": "req_1",
    }


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.RateLimited("Wait.", retry_after=0.2), "1"),
        (errors.RateLimited("Wait.", retry_after=2.1), "3"),
        (errors.SessionBusy("Wait."), "1"),
        (errors.IdempotencyInProgress("Wait."), "1"),
        (errors.StorageUnavailable("Wait."), "1"),
        (errors.UpstreamError("No."), None),
        (errors.SessionArchived("No."), None),
    ],
)
def test_retry_after_is_in_whole_seconds_and_at_least_one(error: SpassError, expected: str | None) -> None:
    assert error_response(error, RequestId("req_1")).headers.get("retry-after") == expected


def check_envelope(response: httpx.Response) -> str:
    body = response.json()
    assert set(body) == {"error", "request_id"}
    assert set(body["error"]) == {"code", "message", "type", "param", "details"}
    assert response.headers["spass-request-id"] == body["request_id"]
    return str(body["error"]["code"])


async def test_an_unknown_path_is_route_not_found(client: httpx.AsyncClient) -> None:
    for path in ("/nothing", "/v1/echo/more", "/v1//pages", "/a1/agents/x//sessions/z", "/a1/agents/x/y/sessions/z"):
        response = await client.get(path)
        assert (response.status_code, check_envelope(response)) == (404, "route_not_found"), path
        assert response.json()["error"]["message"] == NO_SUCH_ROUTE


@pytest.mark.parametrize("escape", ["%2F", "%2f", "%5C", "%5c", "%00"])
async def test_an_escaped_separator_in_a_path_is_route_not_found(client: httpx.AsyncClient, escape: str) -> None:
    user = {"SPASS-User-Id": "ada"}
    for path in (
        f"/a1/agents/a{escape}sessions{escape}b",
        f"/a1/agents/a/sessions/b{escape}",
        f"/a1/rag/indices/a{escape}b",
        f"/{escape}",
    ):
        for method in ("GET", "DELETE"):
            response = await client.request(method, path, headers=user)
            assert (response.status_code, check_envelope(response)) == (404, "route_not_found"), path


async def test_an_unknown_method_gets_a_list_of_the_allowed_methods(client: httpx.AsyncClient) -> None:
    response = await client.put("/a1/agents/a/sessions/b")
    assert (response.status_code, check_envelope(response)) == (405, "method_not_allowed")
    assert response.headers["allow"] == "DELETE, GET, HEAD"
    assert response.json()["error"]["message"] == "This route does not answer to this method. It answers to DELETE, GET, HEAD."
    response = await client.head("/v1/echo")
    assert (response.status_code, response.content, response.headers["allow"]) == (405, b"", "POST")


@pytest.mark.parametrize("path", ["/healthz", "/v1/pages", "/v1/pages?limit=0", "/a1/rag/indices/a", "/nothing"])
async def test_head_answers_like_get_without_a_body(client: httpx.AsyncClient, path: str) -> None:
    get = await client.get(path)
    head = await client.head(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert {**head.headers, "spass-request-id": ""} == {**get.headers, "spass-request-id": ""}


async def test_the_log_has_the_method_that_the_client_sent(client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]) -> None:
    await client.head("/healthz")
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (line["method"], line["route"], line["status"]) == ("HEAD", "/healthz", 200)


@pytest.mark.parametrize("path", ["/healthz/", "//healthz", "///healthz//", "/v1/pages/?limit=5", "//v1/pages?limit=5"])
async def test_extra_slashes_around_a_path_are_ignored(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(f"http://gateway{path}")
    assert response.status_code == 200
    assert response.json() in ({"status": "ok"}, {"limit": 5, "cursor": None})


async def test_an_unexpected_exception_is_logged_and_its_text_is_not_sent(
    client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    response = await client.get("/broken")
    assert (response.status_code, check_envelope(response)) == (500, "internal_error")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["exception"] == "KeyError"
    assert lines[0]["request_id"] == response.headers["spass-request-id"]
    assert lines[0]["where"].startswith("spass.web.")
    assert "secret" not in str(lines) + response.text
    assert lines[1] | {"at": "", "ms": 0, "request_id": ""} == {
        "at": "",
        "ms": 0,
        "request_id": "",
        "level": "info",
        "method": "GET",
        "route": "/broken",
        "status": 500,
        "tenant": None,
        "error": "internal_error",
    }


async def test_an_unknown_token_gets_www_authenticate(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/pages", headers={"Authorization": "Bearer nonsense"})
    assert (response.status_code, check_envelope(response)) == (401, "invalid_token")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_a_bad_query_is_located_and_its_value_is_not_repeated(client: httpx.AsyncClient) -> None:
    for limit in ("0", "1001", "many", "1" * 5000, "-1", "1.5", "", "1.0", "+5", " 5", "5 ", "05", "1_0", "٥", "1e2"):
        response = await client.get("/v1/pages", params={"limit": limit})
        assert (response.status_code, check_envelope(response)) == (400, "invalid_request"), limit
        error = response.json()["error"]
        assert error["param"] == "limit"
        assert error["details"]["errors"][0]["loc"] == ["query", "limit"]
        assert len(response.content) < 700


@pytest.mark.parametrize(("query", "loc"), [("", ["body", "limit"]), ("?shade=red", ["query", "shade"])])
async def test_an_error_of_a_route_is_in_its_query_only_if_the_route_has_such_a_parameter(
    client: httpx.AsyncClient, query: str, loc: list[str]
) -> None:
    response = await client.post(f"/v1/shades{query}", json={})
    assert (response.status_code, check_envelope(response)) == (400, "invalid_request")
    assert response.json()["error"]["details"]["errors"][0]["loc"] == loc


async def test_a_repeated_page_parameter_is_refused(client: httpx.AsyncClient) -> None:
    for query in ("limit=5&limit=5", "limit=5&limit=", "cursor=a&cursor=a"):
        response = await client.get(f"/v1/pages?{query}")
        assert (response.status_code, check_envelope(response)) == (400, "invalid_request"), query
        name = query.partition("=")[0]
        assert response.json()["error"]["param"] == name
        assert response.json()["error"]["details"]["errors"][0]["loc"] == ["query", name]
    assert (await client.get("/v1/pages?limit=1000")).json()["limit"] == 1000


async def test_malformed_names_and_ids_get_404_or_400(client: httpx.AsyncClient) -> None:
    user = {"SPASS-User-Id": "ada"}
    for name, session, code in (
        ("ü", "ses_x", "agent_not_found"),
        ("x" * 5000, "ses_x", "agent_not_found"),
        ("concise-de", "ses_x", "session_not_found"),
        ("concise-de", "T%23HEAD", "session_not_found"),
        ("concise-de", "%ff%fe", "session_not_found"),
        ("concise-de", "s" * 9000, "session_not_found"),
    ):
        response = await client.get(f"/a1/agents/{name}/sessions/{session}", headers=user)
        assert (response.status_code, check_envelope(response)) == (404, code)
    for index in ("-x", "x" * 129, "a%01", "a%23b", "a%0a"):
        response = await client.get(f"/a1/rag/indices/{index}", headers=user)
        assert (response.status_code, check_envelope(response)) == (400, "invalid_request")
