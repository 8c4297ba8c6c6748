"""`spass managed`: arguments, output and exit codes."""

import json
from typing import Any

import pytest

from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.unit.cli.command import spass, spass_in_terminal
from tests.unit.sdk.fake_gateway import error_answer, fake_gateway
from tests.unit.sdk.managed_runs import FRAMES, chunk, stream_answer

NOBODY = "http://127.0.0.1:9"
AGENT: dict[str, Any] = {
    "id": "agt_1",
    "name": "reporter",
    "agent": "operative",
    "status": "idle",
    "error": None,
    "schedule": None,
}
MESSAGE = {"id": "msg_1", "seq": 1, "direction": "user_to_agent", "content": "Hello", "status": "pending", "created_at": "T1"}
ANSWER = {
    **MESSAGE,
    "id": "msg_2",
    "direction": "agent_to_user",
    "content": "Two\nlines",
    "status": "delivered",
    "created_at": "T2",
}
RUN = {"id": "run_1", "status": "queued"}
AGENTS = "/v1/managed-agents"


def respond(request: HttpRequest) -> HttpAnswer:
    """Answer each route of managed agents."""
    match request.method, request.path.removeprefix(AGENTS):
        case "POST", "":
            return json_answer(AGENT, 201)
        case "GET", "":
            return json_answer({"agents": [AGENT], "next_cursor": "2"})
        case "GET", "?cursor=2":
            failed = {**AGENT, "id": "agt_long", "status": "error", "error": {"code": "model_not_found", "message": "Gone."}}
            return json_answer({"agents": [{**failed, "schedule": {"expression": "rate(1 hour)"}}], "next_cursor": None})
        case "POST", "/agt_1/messages":
            return stream_answer(FRAMES) if request.json.get("stream") else json_answer(MESSAGE, 202)
        case "GET", "/agt_1/messages":
            return json_answer({"messages": [MESSAGE, ANSWER], "next_cursor": None})
        case "POST", "/agt_1/run":
            return json_answer(RUN, 202)
        case "DELETE", "/agt_1":
            return json_answer({"deleted": True})
    return error_answer(404, "agent_not_found", "You have no such managed agent.")


def sent(*arguments: str, stdin: str = "") -> Any:
    """Return the body of the one request of a command."""
    with fake_gateway(respond) as gateway:
        output = spass(gateway.url, "managed", *arguments, stdin=stdin)
    assert output.code == 0, output.err
    (request,) = gateway.requests
    return request.json


def test_create_prints_the_id_of_the_agent() -> None:
    with fake_gateway(respond) as gateway:
        output = spass(gateway.url, "managed", "create", "reporter", "--agent", "operative")
    assert (output.code, output.out) == (0, "agt_1\n")
    assert gateway.paths == [f"POST {AGENTS}"]
    assert gateway.requests[0].json == {"name": "reporter", "agent": "operative"}


def test_the_arguments_of_create_become_the_body() -> None:
    choice = ["--model", "m", "--tools", "calculator,think", "--system", "Be brief.", "--param", "max_turns=5"]
    schedule = ["--schedule", "cron(0 8 * * ? *)", "--timezone", "Europe/Berlin", "--input", "What is new?"]
    assert sent("create", "daily", "--agent", "react", *choice, *schedule) == {
        "name": "daily",
        "agent": "react",
        "model": "m",
        "tools": ["calculator", "think"],
        "system_prompt": "Be brief.",
        "params": {"max_turns": 5},
        "schedule": {"expression": "cron(0 8 * * ? *)", "timezone": "Europe/Berlin", "input": "What is new?"},
    }


def test_lists_show_agents_in_columns_and_messages_with_their_sender() -> None:
    with fake_gateway(respond) as gateway:
        agents = spass(gateway.url, "managed", "list").out
        messages = spass(gateway.url, "managed", "messages", "agt_1").out
    assert agents == (
        "agt_1     idle                     operative  reporter\n"
        "agt_long  error (model_not_found)  operative  reporter  rate(1 hour)\n"
    )
    assert messages == "you, T1, pending:\nHello\n\nagent, T2:\nTwo\nlines\n\n"


def test_list_shows_the_time_zone_of_a_schedule_and_whether_it_is_disabled() -> None:
    schedule = {"expression": "cron(0 8 * * ? *)", "timezone": "Europe/Berlin", "input": None, "enabled": False}
    with fake_gateway(lambda _: json_answer({"agents": [{**AGENT, "schedule": schedule}], "next_cursor": None})) as gateway:
        output = spass(gateway.url, "managed", "list")
    assert output.out == "agt_1  idle  operative  reporter  cron(0 8 * * ? *) Europe/Berlin (disabled)\n"


def test_an_empty_list_prints_nothing() -> None:
    with fake_gateway(lambda _: json_answer({"agents": [], "next_cursor": None})) as gateway:
        assert spass(gateway.url, "managed", "list") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "printed", "next_command", "body"),
    [
        (["send", "agt_1", "Hello"], "msg_1\n", "spass managed run agt_1", {"content": "Hello"}),
        (["run", "agt_1", "--input", "What?"], "run_1\n", "spass managed messages agt_1", {"input": "What?"}),
    ],
    ids=["send", "run"],
)
def test_send_and_run_print_an_id_and_name_the_next_command(
    arguments: list[str], printed: str, next_command: str, body: object
) -> None:
    with fake_gateway(respond) as gateway:
        code, out, err = spass(gateway.url, "managed", *arguments)
    assert (code, out) == (0, printed)
    assert next_command in err
    assert gateway.requests[0].json == body


def test_a_dash_reads_the_message_or_the_input_from_stdin() -> None:
    assert sent("send", "agt_1", "-", stdin="From a pipe.\n") == {"content": "From a pipe."}
    assert sent("run", "agt_1", "--input", "-", stdin="From a pipe.\n") == {"input": "From a pipe."}


def test_a_streamed_message_prints_the_answer_to_stdout_and_tool_calls_to_stderr() -> None:
    with fake_gateway(respond) as gateway:
        code, out, err = spass(gateway.url, "managed", "send", "agt_1", "--stream", "What is 2+2?")
    assert (code, out) == (0, "It is 4.\n")
    assert err.splitlines() == ['[calculator] {"expression":"2+2"}', "[calculator] = 4"]


def test_a_terminal_shows_each_step_of_a_run_on_its_own_line() -> None:
    with fake_gateway(respond) as gateway:
        code, out, _ = spass_in_terminal(gateway.url, "managed", "send", "agt_1", "--stream", "What is 2+2?")
    assert code == 0
    assert out.splitlines() == ["Let me compute. ", '[calculator] {"expression":"2+2"}', "[calculator] = 4", "It is 4."]


def test_a_stream_whose_connection_breaks_is_resumed() -> None:
    def answer(request: HttpRequest) -> HttpAnswer:
        if request.method == "POST":
            return stream_answer(FRAMES[:4], is_whole=False)
        assert request.path == f"{AGENTS}/agt_1/runs/run_1/stream"
        assert request.headers["Last-Event-ID"] == "1-4"
        return stream_answer(FRAMES[4:], first=5)

    with fake_gateway(answer) as gateway:
        assert spass(gateway.url, "managed", "send", "agt_1", "--stream", "What is 2+2?")[:2] == (0, "It is 4.\n")
    assert len(gateway.requests) == 2


@pytest.mark.parametrize(("flag", "shown"), [("max_turns_exceeded", "max_turns"), ("cancelled", "cancelled")])
def test_a_run_that_ended_early_is_marked_on_stderr(flag: str, shown: str) -> None:
    frames = [chunk({"content": "Half"}), chunk({}, "stop", **{flag: True})]
    with fake_gateway(lambda _: stream_answer(frames)) as gateway:
        code, out, err = spass(gateway.url, "managed", "send", "agt_1", "--stream", "Hello")
    assert (code, out) == (0, "Half\n")
    assert shown in err


def test_a_run_that_fails_exits_with_1_without_an_answer() -> None:
    error = ("error", {"error": {"code": "turn_lost", "message": "The worker died."}, "request_id": "req_7"})
    with fake_gateway(lambda _: stream_answer([*FRAMES[:4], error])) as gateway:
        code, out, err = spass(gateway.url, "managed", "send", "agt_1", "--stream", "Hello")
    assert (code, out) == (1, "")
    assert "turn_lost: The worker died." in err
    assert "still in the mailbox. Start another run: spass managed run agt_1" in err


def test_a_run_that_fails_before_its_stream_says_that_the_message_may_be_there() -> None:
    with fake_gateway(lambda _: error_answer(502, "upstream_error", "The model does not answer.")) as gateway:
        code, _, err = spass(gateway.url, "managed", "send", "agt_1", "--stream", "Hello")
    assert (code, len(gateway.requests)) == (1, 1)
    assert "do not send it again. Start another run: spass managed run agt_1" in err


def test_a_refused_message_is_not_said_to_be_in_the_mailbox() -> None:
    with fake_gateway(lambda _: error_answer(409, "session_busy", "The run run_1 is active.")) as gateway:
        code, _, err = spass(gateway.url, "managed", "send", "agt_1", "--stream", "Hello")
    assert (code, err.splitlines()[0]) == (1, "spass: session_busy: The run run_1 is active.")
    assert "mailbox" not in err


def test_delete_says_what_was_deleted() -> None:
    with fake_gateway(respond) as gateway:
        code, out, err = spass(gateway.url, "managed", "delete", "agt_1")
    assert (code, out) == (0, "")
    assert "agt_1" in err
    assert gateway.paths == [f"DELETE {AGENTS}/agt_1"]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["create", "reporter", "--agent", "operative"], [AGENT]),
        (["send", "agt_1", "Hello"], [MESSAGE]),
        (["run", "agt_1"], [RUN]),
        (["messages", "agt_1"], [MESSAGE, ANSWER]),
        (["delete", "agt_1"], [{"deleted": True}]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_json_prints_the_answers_of_the_gateway_line_by_line(arguments: list[str], printed: list[dict[str, Any]]) -> None:
    with fake_gateway(respond) as gateway:
        code, out, err = spass(gateway.url, "managed", *arguments, "--json")
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == printed


def test_json_of_a_list_and_of_a_stream_has_one_entry_in_a_line() -> None:
    with fake_gateway(respond) as gateway:
        listed = spass(gateway.url, "managed", "list", "--json").out.splitlines()
        streamed = spass(gateway.url, "managed", "send", "agt_1", "--stream", "--json", "Hello").out.splitlines()
    assert [json.loads(line)["id"] for line in listed] == ["agt_1", "agt_long"]
    assert [json.loads(line)["type"] for line in streamed] == [name or "chunk" for name, _ in FRAMES]


@pytest.mark.parametrize(
    ("code", "hint"),
    [("nothing_to_run", "--input TEXT"), ("user_id_required", "SPASS_USER"), ("agent_paused", "It failed.")],
)
def test_an_error_answer_exits_with_1_and_says_what_to_do(code: str, hint: str) -> None:
    with fake_gateway(lambda _: error_answer(409, code)) as gateway:
        output = spass(gateway.url, "managed", "run", "agt_1")
    assert (output.code, output.out) == (1, "")
    assert code in output.err
    assert hint in output.err


def test_without_a_gateway_it_exits_with_3() -> None:
    code, out, err = spass(NOBODY, "managed", "send", "agt_1", "--stream", "Hello")
    assert (code, out) == (3, "")
    assert "make run" in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["pause", "agt_1"],
        ["create", "reporter"],
        ["create", "--agent", "operative"],
        ["create", "reporter", "--agent", "operative", "--timezone", "UTC"],
        ["create", "reporter", "--agent", "operative", "--input", "What is new?"],
        ["send", "agt_1"],
        ["send", "agt_1", " "],
        ["send", "agt_1", "Hello", "world"],
        ["run"],
        ["run", "agt_1", "--input", ""],
        ["list", "--all"],
        ["delete"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_sends_nothing(arguments: list[str]) -> None:
    with fake_gateway(respond) as gateway:
        code, out, err = spass(gateway.url, "managed", *arguments)
    assert (code, out, gateway.requests) == (2, "", [])
    assert "spass" in err


def test_an_unknown_argument_is_reported_with_the_usage_of_its_command() -> None:
    err = spass(NOBODY, "managed", "send", "agt_1", "Hello", "world").err
    assert "spass managed send: error: unrecognized arguments: world. Write the message in quotes" in err
    assert "spass managed list: error: unrecognized arguments: --all" in spass(NOBODY, "managed", "list", "--all").err


@pytest.mark.parametrize("action", ["", "create", "list", "send", "run", "messages", "delete"])
def test_every_command_has_a_help_with_an_example(action: str) -> None:
    command = ["managed", *action.split()]
    code, out, err = spass(NOBODY, *command, "--help")
    assert (code, err) == (0, "")
    assert f"spass {' '.join(command)}" in out.partition("example")[2]
    assert "SPASS_TOKEN" in out
