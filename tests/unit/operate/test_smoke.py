"""`operate smoke` names the first step that fails and what remains, against a gateway of a few routes in memory."""

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest

from operate import __main__ as operate
from operate import smoke, smoke_steps
from spass.sdk.endpoint import Endpoint

TOKEN: Final = "a-token-of-a-tenant"
URL: Final = "https://gateway.example/dev"
STEPS: Final = [step.name for step in smoke_steps.STEPS]
AGENT: Final = {"name": "helper", "kind": "orchestrator", "usable": True, "tools": []}
SESSIONS: Final = "/a1/agents/helper/sessions"
AGENTS: Final = "/v1/managed-agents"
FORM: Final = "https://bucket.example/"


def answer(body: object, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


def refusal(status: int, code: str, message: str = "No.", **headers: str) -> httpx.Response:
    return answer({"error": {"code": code, "message": message}, "request_id": "req_1"}, status, **headers)


@dataclass
class ScriptedGateway:
    """A gateway whose ``kept`` are the items that were created, by path. ``faults`` answers requests in place of the route: those
    of a method, or of "ANY", whose path ends with a text."""

    models: list[dict[str, str]] = field(
        default_factory=lambda: [{"id": "small", "kind": "chat"}, {"id": "vectors", "kind": "embedding"}]
    )
    wrote_ms: int = 10
    kept: dict[str, dict[str, str]] = field(default_factory=dict)
    faults: dict[tuple[str, str], Callable[[], httpx.Response]] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)

    async def respond(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path.removeprefix("/dev")
        for (method, end), fault in self.faults.items():
            if method in (request.method, "ANY") and path.endswith(end):
                return fault()
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._stranger(request, path)
        body = json.loads(request.content) if request.headers.get("Content-Type") == "application/json" else {}
        return self._read(path) if request.method == "GET" else self._write(request.method, path, body)

    def _stranger(self, request: httpx.Request, path: str) -> httpx.Response:
        if str(request.url) == FORM:
            self.kept[smoke_index(self.requests)] = {}
            return httpx.Response(204)
        if path == "/healthz":
            return answer({"status": "ok"})
        if request.method == "DELETE":
            return refusal(405, "method_not_allowed", Allow="GET, HEAD")
        if path != "/v1/models":
            return refusal(404, "route_not_found")
        return refusal(401, "invalid_token" if "Authorization" in request.headers else "missing_token")

    def _read(self, path: str) -> httpx.Response:
        if path in (SESSIONS, AGENTS):
            items = [{"id": kept.rpartition("/")[2], **item} for kept, item in self.kept.items() if kept.startswith(f"{path}/")]
            return answer({"sessions" if path == SESSIONS else "agents": items})
        if path.startswith("/v1/audit/"):
            return answer({"calls": [{"latency_ms": self.wrote_ms}]})
        if path.startswith("/a1/rag/indices/") and "/uploads/" not in path:
            return answer({}) if path in self.kept else refusal(404, "index_not_found")
        bodies: dict[str, object] = {"/v1/models": {"data": self.models}, "/a1/agents": {"agents": [AGENT]}}
        return answer(bodies.get(path, {"status": "succeeded", "documents_ingested": 1}))

    def _write(self, method: str, path: str, body: dict[str, Any]) -> httpx.Response:
        if method == "DELETE":
            return answer({"deleted": self.kept.pop(path, None) is not None})
        if path == SESSIONS:
            self.kept[f"{path}/ses_1"] = {"title": body["title"]}
            return answer({"id": "ses_1"}, 201)
        if path == AGENTS:
            self.kept[f"{path}/agt_1"] = {"name": body["name"]}
            return answer({"id": "agt_1"}, 201)
        if path.endswith("/chat"):
            events = [{"type": "status_update"}, {"type": "token"}, {"type": "done", "request_id": "req_1"}]
            return httpx.Response(200, text="".join(f": hello\n\ndata: {json.dumps(event)}\n\n" for event in events))
        if path.endswith("/compact"):
            return answer({"summary_model": "small", "compacted_message_count": 2})
        if path.endswith("/uploads"):
            return answer({"upload_id": "upl_1", "url": FORM, "fields": {"key": "secret-of-the-form"}})
        if path.endswith("/query"):
            return answer({"results": [{"metadata": {"source": "smoke.md"}}]})
        if path.endswith("/run"):
            return answer({"id": "run_1"}, 202)
        return answer({"choices": [{"message": {"content": "4"}}]})

    def smoke(self, agent: str | None = None, model: str | None = None) -> int:
        endpoint = Endpoint.resolve(URL, TOKEN, "operate-smoke", {})
        return asyncio.run(smoke.run(endpoint, agent, model, httpx.MockTransport(self.respond)))


def smoke_index(requests: list[httpx.Request]) -> str:
    """Return the path of the index whose form was asked for last."""
    (path,) = {request.url.path for request in requests if request.url.path.endswith("/uploads")}
    return path.removeprefix("/dev").removesuffix("/uploads")


def lost() -> httpx.Response:
    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> ScriptedGateway:
    monkeypatch.setattr("operate.gateway._POLL_SECONDS", 0)
    return ScriptedGateway()


def test_all_steps_pass_and_nothing_remains(gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway.smoke() == 0
    output = capsys.readouterr().out
    assert [line.split()[:2] for line in output.splitlines()[:-2]] == [[name, "ok"] for name in STEPS]
    assert output.endswith("What the test made is removed.\nAll steps passed.\n")
    assert gateway.kept == {}
    assert TOKEN not in output
    assert "secret-of-the-form" not in output


def test_the_token_goes_to_the_gateway_only(gateway: ScriptedGateway) -> None:
    assert gateway.smoke() == 0
    (form,) = [request for request in gateway.requests if str(request.url) == FORM]
    assert not {"authorization", "spass-user-id"} & form.headers.keys()


def test_the_chosen_model_answers_every_step_with_a_model(gateway: ScriptedGateway) -> None:
    assert gateway.smoke(agent="helper", model="small") == 0
    bodies = [json.loads(request.content) for request in gateway.requests if request.url.path.endswith(("/completions", "/chat"))]
    made = [request for request in gateway.requests if (request.method, request.url.path) == ("POST", f"/dev{AGENTS}")]
    assert [body["model"] for body in [*bodies, json.loads(made[0].content)]] == ["small"] * 3


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [("embedding", ["chat", "stream", "compaction", "run"]), ("chat", ["file", "query"]), ("", STEPS[5:])],
    ids=["no chat model", "no embedding model", "no model"],
)
def test_steps_without_a_model_are_left_out_and_named(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], kind: str, left_out: list[str]
) -> None:
    gateway.models = [model for model in gateway.models if model["kind"] == kind]
    assert gateway.smoke() == 0
    output = capsys.readouterr().out
    assert [line.split()[0] for line in output.splitlines() if "left out: this token" in line] == left_out
    assert f"these were left out: {', '.join(left_out)}." in output


@pytest.mark.parametrize("choice", ["agent", "model"])
def test_a_choice_that_the_token_cannot_use_is_named(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], choice: str
) -> None:
    assert gateway.smoke(**{choice: "other"}) == 1
    assert f"The step 'models' failed: This token cannot use the {choice} 'other'. It can use: " in capsys.readouterr().out


def test_a_token_that_the_gateway_does_not_know_fails_before_anything_is_made(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.faults["GET", "/a1/agents"] = lambda: refusal(401, "invalid_token", f"{TOKEN} is unknown.")
    assert gateway.smoke() == 1
    output = capsys.readouterr().out
    assert "The step 'models' failed: GET /dev/a1/agents was answered with 401, not 200. invalid_token: [token] is" in output
    assert TOKEN not in output
    assert {request.method for request in gateway.requests} == {"GET", "DELETE"}
    assert not any(request.method == "DELETE" and "Authorization" in request.headers for request in gateway.requests)


def test_a_proxy_that_buffers_the_stream_is_named(gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.wrote_ms = 60_000
    assert gateway.smoke() == 1
    output = capsys.readouterr().out
    assert "The step 'stream' failed: A proxy buffers the stream: the model wrote for 60.0 s, but the first event came" in output
    assert gateway.kept == {}


def test_events_that_come_while_the_model_writes_pass(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke_steps, "time", SimpleNamespace(monotonic=itertools.count(0, 2).__next__))
    gateway.wrote_ms = 4_000
    assert gateway.smoke() == 0
    assert "the first event came after 2.0 s, the last one after 6.0 s\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (lambda: httpx.Response(200, text='data: {"type": "token"}\n\n'), "The stream broke off after 1 events."),
        (lambda: refusal(503, "no_backend_available"), "answered with 503, not 200. no_backend_available: No. (req_1)"),
        (
            lambda: httpx.Response(200, text='data: {"type": "error", "error": {"code": "turn_lost", "message": "Lost."}}\n\n'),
            "The stream ended with the error turn_lost: Lost.",
        ),
    ],
)
def test_a_stream_without_its_end_fails(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], stream: Callable[[], httpx.Response], reason: str
) -> None:
    gateway.faults["POST", "helper/chat"] = stream
    assert gateway.smoke() == 1
    assert reason in capsys.readouterr().out
    assert gateway.kept == {}


def test_a_gateway_that_dies_in_mid_run_is_named_with_what_remains(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    def die() -> httpx.Response:
        gateway.faults["ANY", ""] = lost
        return lost()

    gateway.faults["POST", "/compact"] = die
    assert gateway.smoke() == 1
    output = capsys.readouterr().out
    assert "The step 'compaction' failed: The connection failed (RemoteProtocolError)." in output
    for kept in (f"sessions at {SESSIONS} with the title operate-smoke-", "/a1/rag/indices/operate-smoke-"):
        assert f"This remains, of the user operate-smoke: {kept}" in output
    assert "All steps passed" not in output


def test_an_interrupted_test_removes_what_it_made(gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> httpx.Response:
        raise asyncio.CancelledError

    gateway.faults["POST", "/compact"] = interrupt
    with pytest.raises(asyncio.CancelledError):
        gateway.smoke()
    assert capsys.readouterr().out.endswith("What the test made is removed.\n")
    assert gateway.kept == {}


@pytest.mark.parametrize("path", [SESSIONS, AGENTS])
def test_an_item_whose_answer_was_lost_is_found_by_its_name(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    def keep_and_lose() -> httpx.Response:
        body = json.loads(gateway.requests[-1].content)
        gateway.kept |= {f"{path}/1": body, f"{path}/2": {"title": "of somebody else", "name": "of somebody else"}}
        return lost()

    gateway.faults["POST", path] = keep_and_lose
    assert gateway.smoke() == 1
    assert [*gateway.kept] == [f"{path}/2"]
    assert "What the test made is removed." in capsys.readouterr().out


def test_a_request_of_unknown_outcome_may_remain(gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.faults["POST", AGENTS] = lost
    assert gateway.smoke() == 1
    output = capsys.readouterr().out
    assert "Nothing was found yet, but the request that makes it may be in work." in output
    assert "What the test made is removed." not in output


def test_an_item_that_cannot_be_removed_is_an_error_although_all_steps_pass(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.faults["DELETE", "agt_1"] = lambda: refusal(500, "internal_error")
    assert gateway.smoke() == 1
    assert f"agents at {AGENTS} with the name operate-smoke-" in capsys.readouterr().out
    assert [*gateway.kept] == [f"{AGENTS}/agt_1"]


def test_a_run_that_fails_is_stopped_and_its_agent_removed(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> httpx.Response:
        del gateway.faults["DELETE", "agt_1"]
        return refusal(409, "session_busy")

    monkeypatch.setattr("operate.leftovers._RETRY_SECONDS", 0)
    failed = {"status": "failed", "error": {"code": "no_backend_available", "message": "No model."}}
    gateway.faults["GET", "run_1"] = lambda: answer(failed)
    gateway.faults["DELETE", "agt_1"] = busy
    assert gateway.smoke() == 1
    assert "The step 'run' failed: It ended as failed: no_backend_available: No model." in capsys.readouterr().out
    assert ("DELETE", f"/dev{AGENTS}/agt_1/runs/run_1") in [(request.method, request.url.path) for request in gateway.requests]
    assert gateway.kept == {}


def test_a_step_that_does_not_end_fails_at_its_limit(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step._replace(seconds=0) if step.name == "file" else step for step in smoke_steps.STEPS]
    monkeypatch.setattr(smoke, "STEPS", steps)
    gateway.faults["GET", "/upl_1"] = lambda: answer({"status": "running"})
    assert gateway.smoke() == 1
    assert "The step 'file' failed: It did not end within 0 s." in capsys.readouterr().out
    assert gateway.kept == {}


@pytest.mark.parametrize(
    "other", [httpx.Response(200, text="<html>Welcome</html>"), answer([]), answer({})], ids=["HTML", "a list", "an empty object"]
)
def test_another_server_is_not_taken_for_a_gateway(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], other: httpx.Response
) -> None:
    gateway.faults["ANY", ""] = lambda: other
    assert gateway.smoke() == 1
    assert "The step 'health' failed: The answer is not one of a gateway" in capsys.readouterr().out


WRONG: Final[dict[str, tuple[tuple[str, str], Callable[[], httpx.Response], str]]] = {
    "health": (("GET", "/healthz"), lambda: answer({"status": "starting"}), "does not say that it is up"),
    "401": (("GET", "/v1/models"), lambda: refusal(401, "other_code"), "the code other_code, not missing_token"),
    "404": (("GET", "/v1/operate-smoke-"), lambda: refusal(404, "other_code"), "the code other_code, not route_not_found"),
    "405": (("DELETE", "/v1/models"), lambda: refusal(405, "method_not_allowed", Allow="POST"), "no header Allow that names GET"),
    "chat": (
        ("POST", "/completions"),
        lambda: answer({"choices": [{"message": {"content": ""}}]}),
        "The answer of agent/helper is empty",
    ),
    "query": (
        ("POST", "/query"),
        lambda: answer({"results": [{"metadata": {"source": "other.md"}}]}),
        "The query did not find the file",
    ),
    "run": (("POST", "/run"), lambda: answer({"id": "run_1"}), "answered with 200, not 202"),
}
"""For a step, the request whose answer is wrong, that answer, and what the test says of it."""


@pytest.mark.parametrize("step", WRONG)
def test_a_wrong_answer_fails_its_step(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(smoke_steps, "uuid4", lambda: SimpleNamespace(hex=""))
    request, wrong, reason = WRONG[step]
    gateway.faults[request] = wrong
    assert gateway.smoke() == 1
    failure = capsys.readouterr().out.splitlines()[-1]
    assert failure.startswith(f"The step '{step}' failed: ")
    assert reason in failure
    assert gateway.kept == {}


@pytest.mark.parametrize("path", [AGENTS, SESSIONS, FORM])
@pytest.mark.parametrize(("status", "remains"), [(503, True), (403, False)])
def test_an_item_may_remain_after_an_error_of_the_server_but_not_after_a_refusal(
    gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str], path: str, status: int, remains: bool
) -> None:
    gateway.faults["POST", "/" if path == FORM else path] = lambda: refusal(status, "internal_error")
    assert gateway.smoke() == 1
    assert ("may be in work" in capsys.readouterr().out) is remains


@pytest.mark.parametrize("reply", ["n", "", None])
def test_nothing_is_sent_without_a_yes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reply: str | None
) -> None:
    def read(_: str) -> str:
        if reply is None:
            raise EOFError
        return reply

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setenv("SPASS_TOKEN", TOKEN)
    monkeypatch.setattr(smoke, "run", None)
    assert operate.main(["smoke", "--url", f"{URL}/"]) == 1
    output = capsys.readouterr().out
    assert f" at {URL}, " in output
    assert "Nothing was changed." in output


@pytest.mark.parametrize(
    ("url", "token", "reason"),
    [
        (URL, "", "Set SPASS_TOKEN"),
        (URL, "a b", "contains a blank"),
        ("https://ada:secret@gateway.example", TOKEN, "is not the address of a gateway"),
        ("gateway.example", TOKEN, "is not the address of a gateway"),
    ],
)
def test_a_bad_address_or_token_is_refused_without_showing_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str, token: str, reason: str
) -> None:
    monkeypatch.setenv("SPASS_TOKEN", token)
    assert operate.main(["smoke", "--url", url, "--yes"]) == 1
    output = capsys.readouterr().out
    assert reason in output
    assert "a b" not in output.replace("a blank", "")
    assert "secret" not in output
