"""`spass ask`: arguments, output and exit codes."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.unit.cli.command import COMMAND, environment, spass, spass_in_terminal
from tests.unit.sdk.fake_gateway import (
    ASK_ANSWER,
    ASK_EVENTS,
    Event,
    answer_ask,
    error_answer,
    event_bytes,
    events_answer,
    fake_gateway,
)

TOKEN = "tok-9f8e7d6c5b4a"
NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("arguments", [[], ["--no-stream"]])
def test_the_answer_goes_to_stdout_and_tool_calls_to_stderr(arguments: list[str]) -> None:
    with fake_gateway(answer_ask) as gateway:
        code, out, err = spass(gateway.url, "ask", *arguments, "What is 1791 * 17?")
    assert (code, out) == (0, "It is 30447.\n")
    assert "[calculator]" in err
    assert "30447" in err
    assert "Let me compute" not in err


def test_json_is_the_answer_of_the_route() -> None:
    with fake_gateway(answer_ask) as gateway:
        code, out, err = spass(gateway.url, "ask", "--json", "Hello", variables={"SPASS_TOKEN": TOKEN})
    assert (code, json.loads(out), err) == (0, ASK_ANSWER, "")
    assert gateway.requests[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in out


def test_the_arguments_become_the_body_of_the_request(tmp_path: Path) -> None:
    context = tmp_path / "notes.txt"
    context.write_text("The door code is 4711.\n")
    arguments = ["--agent", "react", "--tools", "calculator, think", "--model", "m", "--system", "Be brief."]
    parameters = ["--param", "max_turns=5", "--param", "mode=structured", "--param", "sub_model=a=b"]
    with fake_gateway(answer_ask) as gateway:
        assert spass(gateway.url, "ask", *arguments, *parameters, "--context", str(context), "Hello").code == 0
    assert gateway.requests[0].json == {
        "input": "Hello",
        "agent": "react",
        "tools": ["calculator", "think"],
        "model": "m",
        "system_prompt": "Be brief.",
        "params": {"max_turns": 5, "mode": "structured", "sub_model": "a=b"},
        "context": "The door code is 4711.\n",
        "stream": True,
    }


def test_a_json_file_is_the_context_object(tmp_path: Path) -> None:
    context = {"conversation": [{"role": "user", "content": "Hi"}], "memory_results": ["a"]}
    (tmp_path / "context.json").write_text(json.dumps(context))
    with fake_gateway(answer_ask) as gateway:
        assert spass(gateway.url, "ask", "--context", str(tmp_path / "context.json"), "Hello").code == 0
    assert gateway.requests[0].json["context"] == context


def test_a_dash_reads_the_question_from_stdin() -> None:
    with fake_gateway(answer_ask) as gateway:
        assert spass(gateway.url, "ask", "-", stdin="Wie groß\nist der Park?\n").code == 0
    assert gateway.requests[0].json["input"] == "Wie groß\nist der Park?"


def test_an_error_answer_exits_with_1_and_shows_code_message_and_request() -> None:
    with fake_gateway(lambda _: error_answer(404, "agent_not_found", "There is no agent 'x'.")) as gateway:
        code, out, err = spass(gateway.url, "ask", "--agent", "x", "Hello")
    assert (code, out) == (1, "")
    assert "agent_not_found: There is no agent 'x'." in err
    assert "req_7" in err


@pytest.mark.parametrize(
    ("error", "hint"), [("missing_token", "SPASS_TOKEN"), ("invalid_token", "SPASS_TOKEN"), ("user_id_required", "SPASS_USER")]
)
def test_an_error_about_credentials_names_the_variable_to_set(error: str, hint: str) -> None:
    with fake_gateway(lambda _: error_answer(401, error)) as gateway:
        code, _, err = spass(gateway.url, "ask", "Hello", variables={"SPASS_TOKEN": TOKEN})
    assert code == 1
    assert hint in err
    assert TOKEN not in err


def test_a_failure_inside_a_stream_exits_with_1_without_an_answer() -> None:
    error: dict[str, Any] = {
        "code": "upstream_error",
        "message": "The model failed.",
        "type": "api_error",
        "param": None,
        "details": {},
    }
    events: list[Event] = [*ASK_EVENTS[:2], {"type": "error", "error": error, "request_id": "req_1"}]
    with fake_gateway(lambda _: events_answer(events)) as gateway:
        code, out, err = spass(gateway.url, "ask", "Hello")
    assert (code, out) == (1, "")
    assert "upstream_error: The model failed." in err


def test_without_a_gateway_it_exits_with_3_and_names_the_command_that_starts_one() -> None:
    code, out, err = spass(NOBODY, "ask", "Hello")
    assert (code, out) == (3, "")
    assert NOBODY in err
    assert "refused" in err
    assert "make run" in err


def test_a_long_error_message_is_shown_whole_and_a_long_result_is_cut() -> None:
    with fake_gateway(lambda _: error_answer(400, "invalid_request", "x" * 1000)) as gateway:
        assert "x" * 1000 in spass(gateway.url, "ask", "Hello").err
    call = {"type": "tool_call", "id": "c1", "tool": "t", "args": {}, "result": "y" * 1000, "ok": True, "duration_ms": 1}
    with fake_gateway(lambda _: events_answer([call, {"type": "done"}])) as gateway:
        assert "y" * 301 not in spass(gateway.url, "ask", "Hello").err


def test_the_calls_of_a_delegate_have_its_name() -> None:
    place = {"id": "c2", "tool": "calculator", "args": {}, "agent": "dir-code", "parent_id": "c1"}
    started: Event = {"type": "status_update", "status": "executing", "detail": None, "tool_call": place}
    ended: Event = {"type": "tool_call", **place, "result": 42, "ok": True, "duration_ms": 1, "rich": None}
    with fake_gateway(lambda _: events_answer([started, ended, {"type": "done"}])) as gateway:
        err = spass(gateway.url, "ask", "Hello").err
    assert err.splitlines() == ["[dir-code: calculator] {}", "[dir-code: calculator] = 42 (1 ms)"]


@pytest.mark.parametrize("arguments", [[], ["--no-stream"]])
def test_code_and_what_it_printed_keep_their_lines(arguments: list[str]) -> None:
    place = {"id": "c1", "tool": "code_interpreter", "args": {"code": "for n in range(2):\n    print(n)\n1 / 0"}}
    cell = {"output": "0\n1\x1b[2J\n", "error": "Traceback\nZeroDivisionError: division by zero", "truncated": 7}
    started: Event = {"type": "status_update", "status": "executing", "detail": None, "tool_call": place}
    ended: Event = {"type": "tool_call", **place, "result": cell, "ok": True, "duration_ms": 9, "rich": None}
    results = [{"tool_name": "code_interpreter", "content": json.dumps(cell), "success": True, "duration_ms": 9}]

    def respond(request: HttpRequest) -> HttpAnswer:
        is_stream = request.json.get("stream")
        return (
            events_answer([started, ended, {"type": "done"}])
            if is_stream
            else json_answer({**ASK_ANSWER, "tool_results": results})
        )

    with fake_gateway(respond) as gateway:
        lines = spass(gateway.url, "ask", *arguments, "Hello").err.splitlines()
    code = ["[code_interpreter]", "    for n in range(2):", "        print(n)", "    1 / 0"]
    printed = ["    0", "    1[2J", "    [7 more characters]", "    Traceback", "    ZeroDivisionError: division by zero"]
    assert lines == [*([] if arguments else code), "[code_interpreter] = (9 ms)", *printed]


HIDDEN = f"+\t\x1b[2Jnew\rx\x0c{' ' * 400}y\u202e\u200b\u2028\ufff9\ufffc\n"
SHOWN = "+\t⟨U+001B⟩[2Jnew⟨U+000D⟩x⟨U+000C⟩⟨400 blanks⟩y⟨U+202E⟩⟨U+200B⟩⟨U+2028⟩⟨U+FFF9⟩⟨U+FFFC⟩"
WAITS = {"approval_required": True, "approval_id": "apr_1"}


def diff_of(path: str, unified: str, *, status: str = "changed", added: int = 1, removed: int = 1) -> dict[str, object]:
    counts = {"added": added, "removed": removed, "truncated": False}
    return {"kind": "diff", "path": path, "status": status, **counts, "unified": unified}


def notes_of(*events: Event) -> list[str]:
    with fake_gateway(lambda _: events_answer([*events, {"type": "done"}])) as gateway:
        return spass(gateway.url, "ask", "Hello").err.splitlines()


def approval_of(**fields: object) -> Event:
    return {"type": "approval", "approval": {"id": "apr_1", "status": "pending", **fields}}


def call_with(rich: Sequence[object], result: object) -> Event:
    return {"type": "tool_call", "id": "c1", "tool": "t", "result": result, "duration_ms": 1, "rich": [*rich]}


def test_a_diff_is_shown_line_by_line() -> None:
    diff = diff_of("a.md", "--- a/a.md\n+++ b/a.md\n@@ -1 +1 @@\n-\told\n" + HIDDEN)
    _, *lines = notes_of(call_with([diff, {"kind": "file"}], 1))
    assert lines == ["a.md changed +1 -1", "--- a/a.md", "+++ b/a.md", "@@ -1 +1 @@", "-\told", SHOWN]
    assert notes_of(call_with([diff_of("a.md", "+x\n" * 4000)], 1))[-1].endswith(" …")


@pytest.mark.parametrize("result", [WAITS, json.dumps(WAITS)], ids=["value", "text"])
def test_a_call_that_waits_is_shown_whole_and_once_with_its_id(result: object) -> None:
    last = "+send(secrets)"
    rich = [diff_of("a.md", "+x\n" * 4000 + last + "\n"), diff_of("empty", "", status="deleted", added=0, removed=0)]
    preview = {"complete": True, "why": "It removes 'empty'."}
    _, *lines, waiting = notes_of(call_with(rich, result), approval_of(rich=rich, preview=preview, arguments={}))
    assert lines == ["a.md changed +1 -1", *["+x"] * 4000, last, "empty deleted +0 -0", "[It removes 'empty'.]"]
    assert waiting == "[apr_1 waits: approve or deny it, as the same user, with POST /a1/approvals/apr_1]"


def test_a_call_that_waits_without_a_diff_shows_its_preview_and_arguments_whole() -> None:
    preview, arguments = {"old_text": "old " * 1000 + "end"}, {"text": "new " * 1000 + "\u202e"}
    *lines, waiting = notes_of(call_with([], WAITS), approval_of(rich=[], preview=preview, arguments=arguments))
    assert any(line.endswith('old end"') for line in lines)
    assert any(line.endswith('new ⟨U+202E⟩"') for line in lines)
    assert waiting.endswith("POST /a1/approvals/apr_1]")
    waiting = notes_of(approval_of(rich=[], preview=preview, arguments=None))[-1]
    assert waiting.endswith("POST /a1/approvals/apr_1; it is shown in part, so read GET /a1/approvals/apr_1 first]")


def test_an_approval_whose_preview_is_cut_says_where_the_rest_is() -> None:
    waiting = notes_of(approval_of(preview={"complete": False}))[-1]
    assert "read GET /a1/approvals/apr_1/changes to its end first" in waiting


def test_a_connection_that_breaks_in_the_middle_exits_with_3() -> None:
    answer = HttpAnswer(iter(map(event_bytes, ASK_EVENTS[:3])), content_type="text/event-stream")
    with fake_gateway(lambda _: answer) as gateway:
        code, out, _ = spass(gateway.url, "ask", "Hello")
    assert (code, out) == (3, "")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["ask"],
        ["ask", "--nonsense", "Hello"],
        ["ask", "Hello", "world"],
        ["ask", " "],
        ["ask", "-"],
        ["ask", "--param", "max_turns", "Hello"],
        ["ask", "--param", "=5", "Hello"],
        ["ask", "--context", "/nonexistent/file", "Hello"],
        ["ask", "--context", "{broken}", "Hello"],
        ["ask", "--context", "{deep}", "Hello"],
        ["ask", "--param", f"a={'[' * 100_000}", "Hello"],
        ["ask", "--too", "a", "Hello"],
        ["nonsense"],
        ["chat", "extra"],
        ["tools", "--all"],
    ],
)
def test_wrong_usage_exits_with_2_and_sends_nothing(arguments: list[str], tmp_path: Path) -> None:
    files = {"{broken}": "{", "{deep}": "[" * 100_000}
    paths = {name: str(tmp_path / f"{number}.json") for number, name in enumerate(files)}
    for name, text in files.items():
        Path(paths[name]).write_text(text)
    with fake_gateway(answer_ask) as gateway:
        code, out, err = spass(gateway.url, *(paths.get(argument, argument) for argument in arguments))
    assert (code, out) == (2, "")
    assert err
    assert "Traceback" not in err
    assert gateway.requests == []


def test_an_unknown_argument_is_reported_with_the_usage_of_its_command() -> None:
    err = spass(NOBODY, "ask", "Hello", "world").err
    assert "spass ask: error: unrecognized arguments: world. Write the question in quotes" in err
    assert "--tools A,B" in err
    assert "in quotes" not in spass(NOBODY, "ask", "Hello", "--nonsense").err
    assert "spass tools: error: unrecognized arguments: --all" in spass(NOBODY, "tools", "--all").err


@pytest.mark.parametrize(
    ("variables", "shown"), [({"SPASS_URL": "localhost"}, "SPASS_URL"), ({"SPASS_TOKEN": "two words"}, "SPASS_TOKEN")]
)
def test_a_bad_variable_exits_with_2_and_is_named(variables: dict[str, str], shown: str) -> None:
    code, _, err = spass(NOBODY, "ask", "Hello", variables=variables)
    assert code == 2
    assert shown in err
    assert "two words" not in err


@pytest.mark.parametrize("stdin", [b"\xff\xfe", b"x" * (4 * 2**20 + 1)], ids=["not UTF-8", "too long"])
def test_a_stdin_that_cannot_be_sent_exits_with_2(stdin: bytes) -> None:
    with fake_gateway(answer_ask) as gateway:
        assert spass(gateway.url, "ask", "-", stdin=stdin).code == 2
    assert gateway.requests == []


def test_closed_streams_end_the_command_without_a_trace() -> None:
    with fake_gateway(answer_ask) as gateway:
        shell = " ".join(COMMAND)
        for command, code in ((f"{shell} ask - <&-", 2), (f"{shell} chat --agent a <&-", 0), (f"{shell} ask Hello >&-", 0)):
            done = subprocess.run(command, shell=True, env=environment(gateway.url), capture_output=True, check=False)
            assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr


def test_ctrl_c_exits_with_130_and_closes_the_connection() -> None:
    started, closed = threading.Event(), threading.Event()

    def respond(request: HttpRequest) -> HttpAnswer:
        def body() -> Iterator[bytes]:
            yield event_bytes(ASK_EVENTS[0])
            started.set()
            with suppress(ConnectionResetError):
                assert request.wait_for_disconnect(20)
            closed.set()

        return HttpAnswer(body(), content_type="text/event-stream")

    with fake_gateway(respond) as gateway:
        process = subprocess.Popen(
            [*COMMAND, "ask", "Hello"], env=environment(gateway.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert started.wait(30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert closed.wait(5)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err


def test_a_reader_that_goes_away_ends_the_command_without_a_trace() -> None:
    answer = json_answer({**ASK_ANSWER, "content": "x" * 2**20})
    with fake_gateway(lambda _: answer) as gateway:
        reading, writing = os.pipe()
        os.close(reading)
        process = subprocess.Popen(
            [*COMMAND, "ask", "--no-stream", "Hello"], env=environment(gateway.url), stdout=writing, stderr=subprocess.PIPE
        )
        os.close(writing)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert b"Traceback" not in err
    assert b"Broken pipe" not in err


def test_an_output_that_cannot_be_written_ends_the_command_without_a_trace() -> None:
    with fake_gateway(answer_ask) as gateway, Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "ask", "Hello"], env=environment(gateway.url), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert b"The output cannot be written: No space left on device." in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_terminal_shows_tokens_as_they_arrive_with_each_step_on_its_own_line() -> None:
    with fake_gateway(answer_ask) as gateway:
        code, out, _ = spass_in_terminal(gateway.url, "ask", "Hello")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "Let me compute. "
    assert lines[-1] == "It is 30447."
    assert all(line.startswith("[calculator]") for line in lines[1:-1])


def test_a_terminal_gets_no_control_characters_of_a_model() -> None:
    events: list[Event] = [{"type": "token", "content": "a\x1b]0;title\x07b\x9b2Jc\u202ed\n\te", "step": 1}, {"type": "done"}]
    with fake_gateway(lambda _: events_answer(events)) as gateway:
        assert spass_in_terminal(gateway.url, "ask", "Hello").out == "a]0;titleb2Jcd\n\te\n"
    with fake_gateway(lambda _: events_answer(events)) as gateway:
        assert spass(gateway.url, "ask", "Hello").out == "a\x1b]0;title\x07b\x9b2Jc\u202ed\n\te\n"


def test_an_output_without_unicode_gets_question_marks() -> None:
    events: list[Event] = [{"type": "token", "content": "größer → \ud83d", "step": 1}, {"type": "done"}]
    body = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    with fake_gateway(lambda _: HttpAnswer(iter(body), content_type="text/event-stream")) as gateway:
        code, out, _ = spass(gateway.url, "ask", "Hello", variables={"PYTHONIOENCODING": "ascii"})
    assert (code, out) == (0, "gr??er ? ?\n")


def test_an_answer_that_ended_early_is_marked_on_stderr() -> None:
    events: list[Event] = [{"type": "token", "content": "Half", "step": 1}, {"type": "done", "finish_reason": "max_turns"}]
    with fake_gateway(lambda _: events_answer(events)) as gateway:
        code, out, err = spass(gateway.url, "ask", "Hello")
    assert (code, out) == (0, "Half\n")
    assert "max_turns" in err


@pytest.mark.parametrize("command", [[], ["ask"], ["chat"], ["kinds"], ["agents"], ["tools"]])
def test_every_command_has_a_help_with_an_example(command: list[str]) -> None:
    code, out, err = spass(NOBODY, *command, "--help")
    assert (code, err) == (0, "")
    assert f"spass {' '.join(command) or 'ask'}" in out.partition("example")[2]
    assert "SPASS_TOKEN" in out


@pytest.mark.parametrize("kind", ["openhands", "claude_code"])
def test_a_foreign_agent_works_in_the_current_folder(kind: str) -> None:
    with fake_gateway(answer_ask) as gateway:
        spass(gateway.url, "ask", "--agent", kind, "Fix it.")
        spass(gateway.url, "ask", "--agent", kind, "--param", "workspace=/srv/app", "--param", "timeout=5", "Fix it.")
        spass(gateway.url, "ask", "--agent", "react", "Fix it.")
    here, named, other = [request.json.get("params") for request in gateway.requests]
    assert here == {"workspace": str(Path.cwd())}
    assert named == {"workspace": "/srv/app", "timeout": 5}
    assert other is None
