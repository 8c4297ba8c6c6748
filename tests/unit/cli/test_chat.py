"""`spass chat`: the console."""

from collections.abc import Callable
from typing import Any

import pytest

from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.unit.cli.command import spass, spass_in_terminal
from tests.unit.sdk.fake_gateway import error_answer, events_answer, fake_gateway

AGENT: dict[str, Any] = {"name": "concise-de", "kind": "simple", "model": "m", "description": "", "tools": [], "rag_index": None}


def respond(request: HttpRequest) -> HttpAnswer:
    """Answer with what was said. The session ses_1 is compacted into ses_2 by its second message."""
    if request.method == "GET":
        return json_answer({"agents": [AGENT], "next_cursor": None})
    if request.path.endswith("/sessions"):
        return json_answer({"id": "ses_1"}, 201)
    message, session = request.json["message"], request.path.split("/")[5]
    if message == "fail":
        return error_answer(409, "session_busy", "Another turn runs.")
    successor = "ses_2" if message == "compact" else session
    return events_answer(
        [{"type": "token", "content": f"You said {message}.", "step": 1}, {"type": "done", "session_id": successor}]
    )


def test_each_line_is_a_message_of_one_session() -> None:
    with fake_gateway(respond) as gateway:
        code, out, err = spass(gateway.url, "chat", "--agent", "researcher", stdin="one\ncompact\nthree\n")
    assert (code, out) == (0, "You said one.\nYou said compact.\nYou said three.\n")
    assert "agent: researcher" in err
    sessions = "POST /a1/agents/researcher/sessions"
    assert gateway.paths == [sessions, *(f"{sessions}/{name}/messages" for name in ("ses_1", "ses_1", "ses_2"))]


def test_the_first_agent_of_the_gateway_is_the_default() -> None:
    with fake_gateway(respond) as gateway:
        assert "agent: concise-de" in spass(gateway.url, "chat").err


@pytest.mark.parametrize("stdin", ["", "\none\n", "/exit\none\n", "  \none\n"])
def test_an_empty_answer_of_the_input_ends_the_chat(stdin: str) -> None:
    with fake_gateway(respond) as gateway:
        assert spass(gateway.url, "chat", "--agent", "a", stdin=stdin).code == 0
    assert gateway.requests == []


def test_names_that_are_not_utf_8_are_sent_with_question_marks() -> None:
    with fake_gateway(respond) as gateway:
        output = spass(gateway.url, "chat", "--agent", "\udcff", stdin=b"/session \xff\none\n", variables={"LC_ALL": "C"})
    assert "Traceback" not in output.err
    assert gateway.paths == ["POST /a1/agents/%3F/sessions/%3F/messages"]


def test_session_shows_the_session_and_changes_it() -> None:
    with fake_gateway(respond) as gateway:
        output = spass(gateway.url, "chat", "--agent", "a", stdin="/session\none\n/session\n/session ses_9\ntwo\n/session\n")
    assert [line for line in output.err.splitlines() if line.startswith("session:")] == [
        "session: none yet; the first message creates it",
        "session: ses_1",
        "session: ses_9",
        "session: ses_9",
    ]
    assert gateway.paths[-1] == "POST /a1/agents/a/sessions/ses_9/messages"


def test_a_session_of_another_type_is_ignored() -> None:
    def answer(request: HttpRequest) -> HttpAnswer:
        return events_answer([{"type": "done", "session_id": 5}]) if request.path.endswith("/messages") else respond(request)

    with fake_gateway(answer) as gateway:
        assert spass(gateway.url, "chat", "--agent", "a", stdin="one\ntwo\n").code == 0
    assert gateway.paths[-1] == "POST /a1/agents/a/sessions/ses_1/messages"


def test_an_unknown_command_is_not_sent() -> None:
    with fake_gateway(respond) as gateway:
        assert "/sesion is not a command" in spass(gateway.url, "chat", "--agent", "a", stdin="/sesion ses_1\n").err
    assert gateway.requests == []


def test_an_error_answer_ends_a_chat_whose_input_is_a_pipe() -> None:
    with fake_gateway(respond) as gateway:
        code, out, err = spass(gateway.url, "chat", "--agent", "a", stdin="one\nfail\ntwo\n")
    assert (code, out) == (1, "You said one.\n")
    assert "session_busy" in err


def test_an_error_answer_does_not_end_a_chat_in_a_terminal() -> None:
    with fake_gateway(respond) as gateway:
        code, out, _ = spass_in_terminal(gateway.url, "chat", "--agent", "a", stdin=b"fail\none\n/exit\n")
    assert code == 0
    assert "session_busy" in out
    assert "You said one." in out


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda _: None, 3),
        (lambda _: json_answer({"agents": [], "next_cursor": None}), 2),
        (lambda _: error_answer(401, "missing_token"), 1),
    ],
    ids=["unreachable", "no agents", "error"],
)
def test_a_chat_without_an_agent_fails_at_once(answer: Callable[[HttpRequest], HttpAnswer | None], code: int) -> None:
    with fake_gateway(answer) as gateway:
        output = spass(gateway.url, "chat", stdin="one\n")
    assert (output.code, output.out) == (code, "")


def test_a_chat_with_a_kind_is_told_how_to_ask_it() -> None:
    with fake_gateway(lambda _: error_answer(404, "agent_not_found", "The agent 'react' does not exist.")) as gateway:
        output = spass(gateway.url, "chat", "--agent", "react", stdin="one\n")
    assert output.code == 1
    assert "spass ask --agent KIND" in output.err
