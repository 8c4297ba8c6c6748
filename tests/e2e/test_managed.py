"""Managed agents of a started gateway from outside: streamed messages, queued runs and the command line."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

from spass import Spass
from spass.calls.datamark import remove_marks
from tests.e2e.conftest import wait_until
from tests.e2e.managed_gateway import AGENTS, ARGUMENTS, NEIGHBOUR, RESULT, TOKEN, Managed, managed_gateway
from tests.functions.managed_agents import event_lines, read_frames
from tests.unit.cli.command import spass

QUESTION = "What is 2+2?"
SHARE = 4
"""Runs of one tenant that the laptop executes at once: half of its workers."""
RUNS = 6 * SHARE
TO_AGENT, TO_USER = "user_to_agent", "agent_to_user"


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    with managed_gateway(tmp_path_factory.mktemp("managed")) as managed:
        yield managed


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def texts(request: Any) -> list[str]:
    return [remove_marks(message["content"] or "") for message in request["messages"]]


def counting(managed: Managed, **fields: object) -> str:
    """Create an agent that may use the calculator."""
    return managed.create(agent="orchestrator", tools=["calculator"], **fields)


def test_a_streamed_message_is_answered_as_the_contract_says(managed: Managed) -> None:
    agent = counting(managed)
    reply = managed.stream(agent, QUESTION)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    (run,) = managed.get(f"/{agent}/runs")["runs"]
    frames = read_frames(reply)
    assert event_lines(reply) == [f"1-{number}" for number in range(1, len(frames) + 1)]
    called = [name for name, _ in frames].index("tool_calls")
    assert frames[called : called + 2] == [
        ("tool_calls", {"calls": [{"id": "call_1", "tool_name": "calculator", "arguments": ARGUMENTS}]}),
        ("tool_result", {"tool_name": "calculator", "output": RESULT, "call_id": "call_1", "success": True}),
    ]
    assert frames[-1] == (None, "[DONE]")
    chunks = [data for name, data in frames[:-1] if name is None]
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {(run["id"], "chat.completion.chunk", "small")}
    *spoken, last = [chunk["choices"][0] for chunk in chunks]
    assert {choice["finish_reason"] for choice in spoken} == {None}
    assert "".join(choice["delta"]["content"] for choice in spoken) == f"Let me see. About: {QUESTION}"
    assert (last, chunks[-1]["usage"]["prompt_tokens"] > 10) == ({"index": 0, "delta": {}, "finish_reason": "stop"}, True)
    second = managed.upstream.requests[-1]["messages"][-1]
    assert (second["role"], second["tool_call_id"], RESULT in remove_marks(second["content"])) == ("tool", "call_1", True)
    answer = f"About: {QUESTION}"
    assert managed.mailbox(agent) == [(TO_AGENT, QUESTION, "delivered"), (TO_USER, f"Let me see. {answer}", "delivered")]
    managed.stream(agent, "And then?")
    (request,) = managed.upstream.asked("And then?")
    assert {QUESTION, answer} <= set(texts(request))


def test_the_openai_sdk_reads_the_stream_to_its_end(managed: Managed) -> None:
    agent = counting(managed)
    body = {"content": QUESTION, "stream": True}
    headers = {"SPASS-User-Id": "ada"}
    with OpenAI(base_url=f"{managed.gateway.url}{AGENTS}/{agent}", api_key=TOKEN, default_headers=headers) as openai:
        stream = openai.post(
            "/messages", body=body, cast_to=ChatCompletionChunk, stream=True, stream_cls=Stream[ChatCompletionChunk]
        )
        choices = [choice for chunk in stream for choice in chunk.choices or ()]
    assert "".join(choice.delta.content or "" for choice in choices) == f"Let me see. About: {QUESTION}"
    assert choices[-1].finish_reason == "stop"


def test_the_message_is_in_the_mailbox_while_the_upstream_waits(managed: Managed, pool: ThreadPoolExecutor) -> None:
    agent, question = managed.create(), "hold the line"
    posted = pool.submit(managed.stream, agent, question)
    try:
        wait_until(lambda: managed.upstream.asked(question))
        assert managed.mailbox(agent) == [(TO_AGENT, question, "pending")]
        assert managed.get(f"/{agent}")["status"] == "running"
        for method, path, body in (
            ("POST", f"/{agent}/run", {"input": "Now."}),
            ("POST", f"/{agent}/messages", {"content": "Now.", "stream": True}),
            ("DELETE", f"/{agent}", None),
        ):
            refused = managed.send(method, path, body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_busy")
        managed.put_message(agent, "Later.")
    finally:
        managed.upstream.release.set()
    assert read_frames(posted.result())[-1] == (None, "[DONE]")
    assert managed.mailbox(agent) == [
        (TO_AGENT, question, "delivered"),
        (TO_AGENT, "Later.", "pending"),
        (TO_USER, f"About: {question}", "delivered"),
    ]


def test_a_queued_run_answers_all_pending_messages_with_one_call(managed: Managed) -> None:
    agent = managed.create()
    refused = managed.send("POST", f"/{agent}/run")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "nothing_to_run")
    before = len(managed.upstream.requests)
    for content in ("First.", "Second."):
        managed.put_message(agent, content)
    assert len(managed.upstream.requests) == before
    run = managed.run_to_its_end(agent, managed.start_run(agent, input="Third."))
    assert (run["status"], run["turns"], run["error"]) == ("succeeded", 1, None)
    (request,) = managed.upstream.requests[before:]
    assert texts(request)[-1] == "First.\n\nSecond.\n\nThird."
    assert managed.mailbox(agent) == [
        (TO_AGENT, "First.", "delivered"),
        (TO_AGENT, "Second.", "delivered"),
        (TO_USER, "About: First.\n\nSecond.\n\nThird.", "delivered"),
    ]


def test_a_model_that_always_calls_tools_ends_at_max_turns(managed: Managed) -> None:
    agent = counting(managed, params={"max_turns": 3})
    run = managed.run_to_its_end(agent, managed.start_run(agent, input="Calculate for ever."))
    assert (run["status"], run["turns"]) == ("succeeded", 3)
    frames = read_frames(managed.follow(agent, run["id"]))
    assert frames[-1] == (None, "[DONE]")
    assert (frames[-2][1]["choices"][0]["finish_reason"], frames[-2][1]["max_turns_exceeded"]) == ("stop", True)


def test_a_failed_run_leaves_its_messages_to_the_next_one(managed: Managed) -> None:
    agent = managed.create()
    managed.put_message(agent, "This is broken.")
    failed = managed.run_to_its_end(agent, managed.start_run(agent))
    assert (failed["status"], failed["error"]["code"]) == ("failed", "upstream_error")
    found = managed.get(f"/{agent}")
    assert (found["status"], found["error"]["code"]) == ("error", "upstream_error")
    assert managed.mailbox(agent) == [(TO_AGENT, "This is broken.", "pending")]
    frames = read_frames(managed.follow(agent, failed["id"]))
    assert [(name, data["error"]["code"]) for name, data in frames] == [("error", "upstream_error")]
    managed.upstream.is_broken = False
    read_frames(managed.stream(agent, "Is it mended?"))
    assert [status for _, _, status in managed.mailbox(agent)] == ["delivered"] * 3
    assert managed.mailbox(agent)[-1][1] == "About: This is broken.\n\nIs it mended?"
    assert (managed.get(f"/{agent}")["status"], managed.get(f"/{agent}")["error"]) == ("idle", None)


def test_runs_that_keep_their_workers_do_not_stop_those_of_another_tenant(managed: Managed) -> None:
    """One tenant asks for many runs, each of which keeps its worker. Another's begins beside them."""
    neighbour = Managed(managed.gateway, managed.upstream, NEIGHBOUR)
    managed.upstream.release.clear()
    managed.upstream.requests.clear()
    agents = [managed.create() for _ in range(RUNS)]
    runs = [(agent, managed.start_run(agent, input=f"hold {number}")) for number, agent in enumerate(agents)]
    wait_until(lambda: len(managed.upstream.requests) == SHARE)
    statuses = [managed.get(f"/{agent}/runs/{run}")["status"] for agent, run in runs]
    assert statuses == ["running"] * SHARE + ["queued"] * (RUNS - SHARE), "in order"
    with neighbour.http:
        agent = neighbour.create()
        run = neighbour.start_run(agent, input="Hello.")
        assert neighbour.run_to_its_end(agent, run)["status"] == "succeeded", "the other half is free"
    managed.upstream.release.set()
    assert [managed.run_to_its_end(agent, run)["status"] for agent, run in runs] == ["succeeded"] * RUNS
    for agent in agents:
        managed.send("DELETE", f"/{agent}").raise_for_status()


def test_the_command_line_uses_every_route_of_a_managed_agent(managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPASS_TOKEN", "SPASS_USER"):
        monkeypatch.delenv(name, raising=False)

    def command(*arguments: str) -> tuple[int, str, str]:
        return spass(managed.gateway.url, "managed", *arguments)

    code, out, err = command("create", "reporter", "--agent", "orchestrator", "--tools", "calculator")
    assert (code, err) == (0, "")
    agent = out.strip()
    code, out, _ = command("list")
    assert (code, out.split()[:4]) == (0, [agent, "idle", "orchestrator", "reporter"])
    code, out, err = command("send", agent, "--stream", QUESTION)
    assert (code, out) == (0, f"About: {QUESTION}\n"), err
    assert "[calculator] = " in err
    code, _, err = command("send", agent, "Remember me.")
    assert (code, f"spass managed run {agent}" in err) == (0, True)
    code, run, err = command("run", agent)
    assert (code, f"spass managed messages {agent}" in err) == (0, True)
    with Spass(managed.gateway.url) as client:
        answer = [*client.managed.follow(agent, run.strip())]
    assert answer[-1]["choices"][0]["finish_reason"] == "stop"
    assert "About: Remember me." in command("messages", agent)[1]
    shown = [json.loads(line) for line in command("messages", agent, "--json")[1].splitlines()]
    assert [message["run_id"] for message in shown][2:] == [run.strip()] * 2
    code, out, err = command("run", agent)
    assert (code, out, "nothing_to_run" in err, "--input TEXT" in err) == (1, "", True, True)
    assert command("run", agent, "--nonsense")[0] == 2
    assert command("delete", agent)[0] == 0
    assert command("list")[1] == ""
    code, _, err = command("send", agent, "--stream", "Hello")
    assert (code, "agent_not_found" in err) == (1, True)


def test_a_run_that_was_queued_before_a_restart_is_answered_once(managed: Managed) -> None:
    """This test is the last one, because it restarts the gateway."""
    agent = managed.create(schedule={"expression": "rate(1 hour)"})
    (entry,) = managed.aws.entries(agent)
    managed.put_message(agent, "Are you there?")
    managed.aws.accept_runs(enabled=False)
    run = managed.start_run(agent, input="After the restart.")
    assert managed.gateway.stop() == 0
    managed.gateway.start()
    assert managed.get(f"/{agent}")["status"] == "running"
    assert managed.get(f"/{agent}/runs/{run}")["status"] == "queued"
    managed.aws.accept_runs(enabled=True)
    assert managed.run_to_its_end(agent, run)["status"] == "succeeded"
    wait_until(lambda: managed.aws.is_drained(entry))
    assert len(managed.upstream.asked("Are you there?\n\nAfter the restart.")) == 1
    assert [status for _, _, status in managed.mailbox(agent)] == ["delivered"] * 2
    assert managed.aws.entries(agent) == [entry], "the scheduler has kept its entry"
