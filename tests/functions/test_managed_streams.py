"""Streamed messages to managed agents: the frames, what is stored before the first one, and how a stream is read again."""

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from openai import OpenAI

from spass.core.messages import FinishReason, Role, TokenUsage, ToolCallDelta
from spass.models.errors import AttemptFailed, BackendUnreachable
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from spass.testing.http_server import HttpAnswer, serve
from spass.testing.model import calls
from tests.functions.gateway import Gateway, Reply
from tests.functions.managed_agents import AGENTS, ManagedClient, event_lines, execute, queue, read_frames, tick

USAGE = TokenUsage(10, 5)
ARGUMENTS = '{"expression":"2+2"}'
RESULT = '{"expression":"2+2","result":4}'
QUESTION = {"content": "What is 2+2?", "stream": True}


class CallingModel:
    """A model that writes "Let me see. ", calls the calculator, and answers "It is 4.". The arguments arrive in ``pieces``."""

    def __init__(self, pieces: Sequence[str] = (ARGUMENTS,)) -> None:
        self.pieces = pieces

    def __call__(self, request: ChatRequest, _context: CallContext) -> Sequence[ChatDelta]:
        if request.messages[-1].role is Role.TOOL:
            return [ChatDelta("It "), ChatDelta("is 4.", finish_reason=FinishReason.STOP, usage=USAGE)]
        return [
            ChatDelta("Let me see. "),
            ChatDelta(tool_calls=(ToolCallDelta(0, "call_1", "calculator", ""),)),
            *(ChatDelta(tool_calls=(ToolCallDelta(0, arguments=piece),)) for piece in self.pieces),
            ChatDelta(finish_reason=FinishReason.TOOL_CALLS, usage=USAGE),
        ]


def counting(client: ManagedClient, **fields: object) -> str:
    """Create an agent that may use the calculator."""
    return client.create(agent="orchestrator", tools=["calculator"], **fields)


def stream(client: ManagedClient, agent: str, content: str = "What is 2+2?", **headers: str) -> Reply:
    return client.send("POST", f"/{agent}/messages", {"content": content, "stream": True}, headers)


CUTS = [(ARGUMENTS[:at], ARGUMENTS[at:]) for at in range(len(ARGUMENTS) + 1)] + [tuple(ARGUMENTS)]


@pytest.mark.parametrize("pieces", CUTS, ids=lambda pieces: "|".join(pieces)[:40])
def test_the_frames_are_those_of_the_contract_wherever_a_call_is_cut(client: ManagedClient, pieces: Sequence[str]) -> None:
    client.gateway.model.script = CallingModel(pieces)
    reply = stream(client, agent := counting(client))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    frames = read_frames(reply)
    (run,) = client.runs(agent)
    chunks = [data for name, data in frames if name is None and data != "[DONE]"]
    called = [name for name, _ in frames].index("tool_calls")
    assert [name for name, _ in frames if name] == ["tool_calls", "tool_result"]
    assert frames[called][1] == {"calls": [{"id": "call_1", "tool_name": "calculator", "arguments": ARGUMENTS}]}
    assert frames[called + 1][1] == {"tool_name": "calculator", "output": RESULT, "call_id": "call_1", "success": True}
    texts = [data["choices"][0]["delta"].get("content", "") for name, data in frames[:-1] if name is None]
    assert ("".join(texts[:called]), "".join(texts[called:])) == ("Let me see. ", "It is 4.")
    assert [chunk["choices"] for chunk in chunks[:-1]] == [
        [{"index": 0, "delta": {"content": text}, "finish_reason": None}] for text in texts[:-1]
    ]
    assert chunks[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert (chunks[-1]["usage"]["prompt_tokens"], chunks[-1]["usage"]["total_tokens"]) == (20, 30)
    assert "cost" in chunks[-1]["usage"]
    assert frames[-1] == (None, "[DONE]")
    for chunk in chunks:
        assert (chunk["id"], chunk["object"], chunk["model"]) == (run["id"], "chat.completion.chunk", "small")
    assert event_lines(reply) == [f"1-{number}" for number in range(1, len(frames) + 1)]
    result = client.gateway.model.requests[1].messages[-1]
    assert (result.role, result.tool_call_id) == (Role.TOOL, "call_1")
    assert RESULT in result.content


def test_the_answer_is_in_the_mailbox_and_the_next_run_knows_both(client: ManagedClient) -> None:
    client.gateway.model.script = CallingModel()
    agent = counting(client)
    stream(client, agent)
    (run,) = client.runs(agent)
    question, answer = client.messages(agent)
    assert (question["content"], question["direction"], question["status"]) == ("What is 2+2?", "user_to_agent", "delivered")
    assert (answer["content"], answer["direction"], answer["status"]) == ("Let me see. It is 4.", "agent_to_user", "delivered")
    assert question["run_id"] == answer["run_id"] == run["id"]
    assert (run["status"], run["trigger"], run["turns"], run["error"]) == ("succeeded", "message", 2, None)
    assert run["usage"] == {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
    assert float(run["cost_usd"]) > 0
    assert client.get(agent)["status"] == "idle"
    client.gateway.model.script = "Four, as I said."
    stream(client, agent, "And again?")
    contents = [message.content for message in client.gateway.model.requests[-1].messages]
    assert contents[-1] == "And again?"
    assert {"What is 2+2?", "It is 4."} <= set(contents)


def test_the_message_is_in_the_mailbox_while_the_model_still_waits(gateway: Gateway, client: ManagedClient) -> None:
    agent = client.create()
    asked, may_answer = asyncio.Event(), asyncio.Event()
    gateway.model.script = "Hello."

    async def wait() -> None:
        asked.set()
        await may_answer.wait()

    async def look() -> None:
        await asked.wait()
        path, headers = f"{AGENTS}/{agent}", {"SPASS-User-Id": "ada"}
        (message,) = (await gateway.send_async("GET", f"{path}/messages", headers=headers)).json["messages"]
        seen.append((message["content"], message["status"], message["run_id"]))
        seen.append((await gateway.send_async("GET", path, headers=headers)).json["status"])
        may_answer.set()

    seen: list[Any] = []
    gateway.model.before_chat = wait
    request = gateway.send_async("POST", f"{AGENTS}/{agent}/messages", headers={"SPASS-User-Id": "ada"}, body=QUESTION)
    reply = gateway.send_during(request, look())
    assert seen == [("What is 2+2?", "pending", None), "running"]
    assert read_frames(reply)[-1] == (None, "[DONE]")
    assert [message["status"] for message in client.messages(agent)] == ["delivered", "delivered"]


def test_a_model_that_answers_in_one_piece_gives_one_chunk_and_the_same_end(client: ManagedClient) -> None:
    client.gateway.model.script = [ChatDelta("The whole answer.", finish_reason=FinishReason.STOP, usage=USAGE)]
    frames = read_frames(stream(client, client.create()))
    assert [data["choices"][0]["delta"] for _, data in frames[:-1]] == [{"content": "The whole answer."}, {}]
    assert frames[-1] == (None, "[DONE]")


def test_a_model_that_always_calls_tools_ends_at_max_turns_with_the_flag(client: ManagedClient) -> None:
    client.gateway.model.script = calls(("calculator", ARGUMENTS))
    agent = counting(client, params={"max_turns": 2})
    frames = read_frames(stream(client, agent))
    last = frames[-2][1]
    assert (last["choices"][0]["finish_reason"], last["max_turns_exceeded"]) == ("stop", True)
    assert frames[-1] == (None, "[DONE]")
    assert client.runs(agent)[0]["status"] == "succeeded"


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (AttemptFailed("The provider is down."), 502, "upstream_error"),
        (BackendUnreachable("The provider could not be reached."), 503, "no_backend_available"),
    ],
)
def test_a_run_that_fails_before_its_first_byte_has_the_status_of_its_error(
    client: ManagedClient, failure: Exception, status: int, code: str
) -> None:
    client.gateway.model.failure = failure
    reply = stream(client, agent := client.create())
    assert (reply.status, reply.code) == (status, code)
    assert reply.headers["x-should-retry"] == "false", "an SDK would put the message into the mailbox again"
    assert status == 502 or f"POST /v1/managed-agents/{agent}/run" in reply.json["error"]["message"]
    assert_failed(client, agent, "upstream_error")


def test_a_run_whose_backends_all_failed_just_before_is_as_one_without_a_backend(client: ManagedClient) -> None:
    client.gateway.model.failure = AttemptFailed("The provider is down.")
    first, second = (stream(client, client.create()) for _ in range(2))
    assert [(reply.status, reply.code) for reply in (first, second)] == [
        (502, "upstream_error"),
        (503, "no_backend_available"),
    ]
    assert second.headers["x-should-retry"] == "false"


def test_a_run_that_fails_in_the_middle_ends_with_error_and_without_done(client: ManagedClient) -> None:
    client.gateway.model.script = [ChatDelta("It is "), AttemptFailed("The provider is down.")]
    reply = stream(client, agent := client.create())
    frames = read_frames(reply)
    assert [name for name, _ in frames] == [None, "error"]
    assert frames[-1][1]["error"]["code"] == "upstream_error"
    assert frames[-1][1]["request_id"] == reply.headers["spass-request-id"]
    assert "[DONE]" not in reply.text
    assert_failed(client, agent, "upstream_error")


def test_readers_that_see_the_error_of_a_run_find_it_ended(client: ManagedClient) -> None:
    """Otherwise the next request of a follower would meet an active run."""
    client.gateway.model.script = [ChatDelta("It is "), AttemptFailed("The provider is down.")]
    agent = client.create()
    with inject(FaultPlan()) as plan:
        stream(client, agent)
    writes = [str(call.parameters) for call in plan.calls if not call.is_read]
    run_ended, stream_ended = (
        [number for number, write in enumerate(writes) if mark in write] for mark in ("('active_run',)", "StreamState.FAILED")
    )
    assert run_ended
    assert stream_ended
    assert run_ended < stream_ended


def assert_failed(client: ManagedClient, agent: str, code: str) -> None:
    """Check that the run has failed, the message waits, and the next run answers it."""
    (run,) = client.runs(agent)
    assert (run["status"], run["error"]["code"]) == ("failed", code)
    assert run["finished_at"]
    found = client.get(agent)
    assert (found["status"], found["error"]["code"]) == ("error", code)
    (message,) = client.messages(agent)
    assert message["status"] == "pending"
    client.gateway.model.failure, client.gateway.model.script = None, "Here I am."
    stream(client, agent, "And now?")
    assert client.gateway.model.requests[-1].messages[-1].content == "What is 2+2?\n\nAnd now?"
    assert [entry["status"] for entry in client.messages(agent)] == ["delivered"] * 3
    assert (client.get(agent)["status"], client.get(agent)["error"]) == ("idle", None)


@pytest.mark.parametrize("trigger", ["message", "run", "schedule"])
def test_a_run_is_read_again_byte_for_byte_from_its_start_and_after_every_event(
    client: ManagedClient, aws: MemoryAws, trigger: str
) -> None:
    client.gateway.model.script = CallingModel()
    agent = counting(client, schedule={"expression": "rate(1 hour)", "input": "What is 2+2?"})
    if trigger == "message":
        live = stream(client, agent)
        (run,) = client.runs(agent)
    else:
        if trigger == "run":
            execute(client.gateway, agent, queue(client, agent, "What is 2+2?"))
        else:
            (entry,) = aws.scheduler.entries.values()
            tick(client.gateway, entry, "2030-01-31T08:00:00Z")
        (run,) = client.runs(agent)
        live = client.send("GET", f"/{agent}/runs/{run['id']}/stream")
        frames = read_frames(live)
        assert [name for name, _ in frames if name] == ["tool_calls", "tool_result"]
        assert (run["trigger"], frames[-2][1]["id"], frames[-1][1]) == (trigger, run["id"], "[DONE]")
    path = f"/{agent}/runs/{run['id']}/stream"
    assert client.send("GET", path).content == live.content
    ids, head = event_lines(live), live.text.index("id: ")
    for event_id, follower in pairwise(ids):
        rest = client.send("GET", path, headers={"Last-Event-ID": event_id})
        assert rest.text == live.text[:head] + live.text[live.text.index(f"id: {follower}\n") :]
    end = client.send("GET", path, headers={"Last-Event-ID": ids[-1]})
    assert (end.status, end.content) == (204, b"")
    assert client.send("HEAD", path).status == 200
    assert client.send("GET", path, headers={"Last-Event-ID": "1-x"}).code == "invalid_request"


def test_the_same_key_replays_the_stream_and_stores_one_message(client: ManagedClient) -> None:
    agent = client.create()
    first, second = (stream(client, agent, **{"Idempotency-Key": "stream-1"}) for _ in range(2))
    assert second.content == first.content
    assert second.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert len(client.gateway.model.requests) == 1
    assert len(client.messages(agent)) == 2
    assert stream(client, agent, "Other.", **{"Idempotency-Key": "stream-1"}).code == "idempotency_key_reused"
    queued = client.send("POST", f"/{agent}/messages", {"content": "What is 2+2?"}, {"Idempotency-Key": "stream-1"})
    assert queued.code == "idempotency_key_reused"


def test_the_openai_sdk_reads_the_stream_to_its_end(client: ManagedClient) -> None:
    client.gateway.model.script = CallingModel()
    content = stream(client, counting(client)).content

    with (
        serve(lambda _: HttpAnswer(content, content_type="text/event-stream")) as url,
        OpenAI(base_url=url, api_key="a key", max_retries=0) as openai,
    ):
        chunks = [*openai.chat.completions.create(model="m", messages=[], stream=True)]
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices or () if choice.delta]
    assert "".join(texts) == "Let me see. It is 4."
    assert json.loads(chunks[-1].model_dump_json())["choices"][0]["finish_reason"] == "stop"
