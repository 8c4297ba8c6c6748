"""What the page about operators says of their ids, their routes, the models ``agent/<name>`` and the kinds' keys in paths."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from spass import Spass
from spass.agents.registry import load_agent
from spass.calls.datamark import remove_marks
from spass.core.messages import Role
from spass.models.errors import AttemptFailed
from spass.tenancy.yaml_source import ConfigError
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from spass.testing.model import calls, in_turn
from tests.functions.gateway import Gateway
from tests.functions.operator_runs import WATCH, add_operators, ask, chat, session_items, states
from tests.unit.cli.command import spass

USER: Final = {"SPASS-User-Id": "ada"}
FIELDS: Final = ["operator_id", "session_id", "state", "notes", "updated_at"]


@pytest.mark.parametrize("operator", ["x", "A-Z.a_z:09", "." * 64, "...", "-", "STATE", "NOTE:x", "agt_1"])
def test_an_id_of_up_to_64_of_its_characters_names_an_operator(operators: Gateway, operator: str) -> None:
    session = ask(operators, "Hi", operator).json["metadata"]["session_id"]
    found = operators.send("GET", f"/v1/operators/{operator}", headers=USER)
    assert (found.status, list(found.json)) == (200, FIELDS)
    assert (found.json["operator_id"], found.json["session_id"], found.json["notes"]) == (operator, session, 0)
    listed = operators.send("GET", f"/v1/operators/{operator}/notes", headers=USER)
    assert listed.json == {"notes": [], "next_cursor": None}
    assert operators.send("DELETE", f"/v1/operators/{operator}", headers=USER).json == {"deleted": True}


BAD_IDS: Final[Mapping[str, object]] = {
    "empty": "",
    "too long": "x" * 65,
    "a hash": "a#b",
    "a slash": "a/b",
    "a blank": "a b",
    "a line break at the end": "ab\n",
    "a letter of another alphabet": "ü",
    "a digit of another alphabet": "٣",
    "NUL": "a\0",
    "a number": 7,
    "a list": ["a"],
}


@pytest.mark.parametrize("kind", ["operative", "monitor_operative"])
@pytest.mark.parametrize("name", BAD_IDS)
def test_a_bad_operator_id_is_refused_in_a_question_and_in_a_file(
    operators: Gateway, tmp_path: Path, kind: str, name: str
) -> None:
    before = operators.stored()
    body = {"input": "Hi", "agent": kind, "params": {"operator_id": BAD_IDS[name]}}
    reply = operators.send("POST", "/v1/ask", headers=USER, body=body)
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", "params.operator_id")
    assert operators.stored() == before
    assert operators.model.requests == []
    file = tmp_path / "guide.yaml"
    file.write_text(f"name: guide\nkind: {kind}\nmodel: small\noperator_id: {json.dumps(BAD_IDS[name])}\n")
    with pytest.raises(ConfigError, match=r"guide\.yaml:4: operator_id"):
        load_agent(file, operators.services.config)


@pytest.mark.parametrize("kind", ["simple", "orchestrator", "native_react", "rlm"])
def test_kinds_that_do_not_remember_have_no_operator_id(operators: Gateway, tmp_path: Path, kind: str) -> None:
    body = {"input": "Hi", "agent": kind, "params": {"operator_id": "news"}}
    reply = operators.send("POST", "/v1/ask", headers=USER, body=body)
    assert (reply.status, reply.json["error"]["param"]) == (400, "params.operator_id")
    file = tmp_path / "guide.yaml"
    file.write_text(f"name: guide\nkind: {kind}\nmodel: small\noperator_id: news\n")
    with pytest.raises(ConfigError, match=r"guide\.yaml:4: .*operator_id"):
        load_agent(file, operators.services.config)


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_of_an_agent_runs_without_its_operator(operators: Gateway, stream: bool) -> None:
    chat(operators, "Remember the Anna.")
    before = operators.stored()
    search = calls(("memory_store", {"content": "x"}), ("memory_store", {"content": "x", "key": "state"}))
    operators.model.script = in_turn([search, "I cannot."])
    operators.model.requests.clear()
    body = {"model": "agent/watch", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    reply = operators.send("POST", "/v1/chat/completions", headers=USER, body=body)
    assert reply.status == 200, reply.text
    first, second = operators.model.requests
    shown = " ".join(remove_marks(message.content) for message in first.messages)
    assert "Watch the harbour." in shown
    assert ("Anna" in shown, "Previous state" in shown) == (False, False)
    assert ["no_operator" in message.content for message in second.messages[-2:]] == [True, True]
    after = operators.stored()
    assert {key for key in after if "#USAGE#" not in key} == {key for key in before if "#USAGE#" not in key}
    assert {key: after[key] for key in before if "STATE" in key} == {key: before[key] for key in before if "STATE" in key}
    assert session_items(operators) == [states(operators)["ada#watch"]["session"]]


def test_the_file_of_an_operator_takes_no_other_operator_id(operators: Gateway) -> None:
    body = {"input": "Hi", "agent": "watch", "params": {"operator_id": "mine"}}
    reply = operators.send("POST", "/v1/ask", headers=USER, body=body)
    assert (reply.status, reply.json["error"]["param"]) == (400, "params")
    assert states(operators) == {}


@pytest.mark.parametrize("kind", ["operative", "monitor_operative", "simple", "react"])
def test_a_kind_has_sessions_to_read_but_none_to_begin_or_to_write_to(operators: Gateway, kind: str) -> None:
    """They are those of operators and of managed agents, which only runs continue."""
    made = ask(operators, "Hi", kind="operative").json["metadata"]["session_id"]
    before, sessions = operators.stored(), f"/a1/agents/{kind}/sessions"
    for path, body in (
        (sessions, {}),
        (f"{sessions}/{made}/messages", {"message": "two"}),
        (f"{sessions}/{made}/messages", {"message": "two", "stream": True}),
        (f"{sessions}/ses_{'0' * 26}/messages", {"message": "two"}),
    ):
        reply = operators.send("POST", path, body=body)
        assert (reply.status, reply.code) == (400, "invalid_request"), path
        assert f"'{kind}' is a kind" in reply.json["error"]["message"]
    assert operators.stored() == before
    assert len(operators.model.requests) == 1
    listed = operators.send("GET", sessions).json["sessions"]
    assert [session["id"] for session in listed] == ([made] if kind == "operative" else [])
    for tail in ("", "/messages", "/lineage"):
        reply = operators.send("GET", f"{sessions}/{made}{tail}")
        assert reply.code == (None if kind == "operative" else "session_agent_mismatch"), tail


def test_neither_a_kind_nor_an_agent_is_not_found(operators: Gateway) -> None:
    for path, body in (("sessions", {}), (f"sessions/ses_{'0' * 26}/messages", {"message": "x"})):
        assert operators.send("POST", f"/a1/agents/nobody/{path}", body=body).code == "agent_not_found"


def test_an_operator_whose_first_run_fails_has_no_state_and_goes_on(operators: Gateway) -> None:
    operators.model.failure = AttemptFailed("The provider is down.")
    assert chat(operators, "one").status == 502
    found: Any = operators.send("GET", "/v1/operators/watch", headers=USER)
    assert found.code == "operator_not_found" or (found.json["state"], found.json["notes"]) == (None, 0)
    operators.model.failure = None
    session = chat(operators, "two").json["session_id"]
    assert session_items(operators) == [session]
    assert not [message for message in operators.model.requests[-1].messages if "Previous state" in message.content]
    assert operators.send("GET", f"{WATCH}/sessions/{session}").json["message_count"] == 2


def test_an_operator_does_not_name_a_session_that_was_deleted(operators: Gateway) -> None:
    session = chat(operators, "one").json["session_id"]
    assert operators.send("GET", "/v1/operators/watch", headers=USER).json["session_id"] == session
    assert operators.send("DELETE", f"{WATCH}/sessions/{session}").status == 200
    view = operators.send("GET", "/v1/operators/watch", headers=USER).json
    assert (list(view), view["session_id"]) == (FIELDS, None)
    second = chat(operators, "two").json["session_id"]
    assert operators.send("GET", "/v1/operators/watch", headers=USER).json["session_id"] == second != session


def test_a_full_operator_evicts_its_oldest_notes_and_counts_a_thousand(operators: Gateway) -> None:
    """The commit or search that sees more than a thousand notes evicts. So a search is last."""
    for start in range(0, 1040, 26):
        tools = [("memory_store", {"content": f"c{number}", "key": f"n{number:04}"}) for number in range(start, start + 26)]
        operators.model.script = in_turn([calls(*tools), "Done."])
        assert chat(operators, f"store {start}").status == 200
        operators.send("DELETE", f"{WATCH}/sessions/{states(operators)['ada#watch']['session']}")
    operators.model.script = in_turn([calls(("memory_search", {"query": "c1039"})), "Done."])
    add_operators(operators, watch="name: watch\nkind: operative\nmodel: small\ntools: [memory_search]\n")
    operators.services.__dict__.pop("agents", None)
    assert chat(operators, "search").status == 200
    assert operators.send("GET", "/v1/operators/watch", headers=USER).json["notes"] == 1000
    page = operators.send("GET", "/v1/operators/watch/notes?limit=1000", headers=USER).json
    assert sorted(note["key"] for note in page["notes"]) == [f"n{number:04}" for number in range(40, 1040)]


def test_the_command_line_and_the_sdk_run_the_operator_of_a_question(operators: Gateway) -> None:
    """Without a user, the operator is the token's."""

    def respond(request: HttpRequest) -> HttpAnswer:
        sent = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
        reply = operators.send(request.method, request.path, token=None, headers=sent, raw=request.body)
        return HttpAnswer(reply.text.encode(), reply.status, reply.headers["content-type"])

    body = {"input": "From HTTP.", "agent": "operative", "params": {"operator_id": "daily"}}
    with serve(respond) as url:
        arguments = ("ask", "--json", "--agent", "operative", "--param", "operator_id=daily", "From the command line.")
        code, out, err = spass(url, *arguments)
        assert code == 0, err
        session = json.loads(out)["metadata"]["session_id"]
        with Spass(url=url, token="demo-token") as client:
            result = client.ask_full("From the SDK.", agent="operative", params={"operator_id": "daily"})
        assert result["metadata"]["session_id"] == session
        assert operators.send("POST", "/v1/ask", body=body).json["metadata"]["session_id"] == session
    shown = operators.model.requests[-1].messages
    asked = [message.content for message in shown if message.role is Role.USER and message.content.startswith("From ")]
    assert asked == ["From the command line.", "From the SDK.", "From HTTP."]
    assert [*states(operators)] == ["token/demo-user#daily"]
