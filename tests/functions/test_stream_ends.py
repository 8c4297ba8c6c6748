"""The end of a streamed turn, in virtual time: its deadline, a client that leaves, and a worker that dies."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import pytest

from spass.calls.scope import CUT_SECONDS, REQUEST_SECONDS, STREAM_SECONDS
from spass.core.ids import AgentName, UserId
from spass.core.messages import FinishReason, Role, TokenUsage, ToolCallDelta
from spass.journal.head import StreamHead, StreamState, read_head, stream_digest
from spass.models.errors import BackendTimeout
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import inject
from tests.functions.stopped_turns import StoppedChats
from tests.simulated.chats import AGENT, USER, Answer, Chats, Process, virtual_clocks, virtual_now
from tests.stream_grammar import answer_text, of_type, parse_events, receive

pytestmark = pytest.mark.anyio

BODY: Final = {"message_id": "m-1", "session_id": "chat", "messages": [{"role": "user", "content": "Hi"}]}
CALLS: Final = ChatDelta(
    tool_calls=(
        ToolCallDelta(0, "call_1", "calculator", '{"expression": "6*7"}'),
        ToolCallDelta(1, "call_2", "llm", '{"prompt": "Think."}'),
    ),
    finish_reason=FinishReason.TOOL_CALLS,
    usage=TokenUsage(10, 5),
)
END: Final = ChatDelta("The end.", finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncGenerator[StoppedChats, None]:
    with virtual_clocks():
        yield StoppedChats(tmp_path)


async def head_of(chats: Chats) -> StreamHead:
    with inject(Process()):
        head = await read_head(chats.store, stream_digest(UserId(USER), AgentName(AGENT), "m-1"))
    assert head is not None
    return head


def elapsed(since: float) -> float:
    return asyncio.get_running_loop().time() - since


@pytest.mark.parametrize("place", ["before the first token", "in the text", "in a tool"])
async def test_a_turn_that_reaches_its_deadline_is_kept(chats: StoppedChats, place: str) -> None:
    async def script(request: ChatRequest, _: CallContext) -> AsyncGenerator[ChatDelta, None]:
        if place == "in a tool" and request.tools:
            await asyncio.sleep(STREAM_SECONDS - 100)
            yield ChatDelta("I compute. ")
            yield CALLS
            return
        if place == "in the text":
            yield ChatDelta("So far ")
            await asyncio.sleep(STREAM_SECONDS - 100)
            yield ChatDelta("so good.")
        await asyncio.sleep(10 * STREAM_SECONDS)

    chats.model.script = script
    began = asyncio.get_running_loop().time()
    events = parse_events((await chats.post(BODY)).body)
    assert STREAM_SECONDS <= elapsed(began) < STREAM_SECONDS + CUT_SECONDS
    assert chats.model.closed == len(chats.model.requests), "a connection to the model is open"
    (done,) = of_type(events, "done")
    assert done["finish_reason"] == "deadline"
    # The end of a text that goes on is held back: it may be the beginning of a secret.
    text = {"before the first token": "", "in the text": "So far so good", "in a tool": "I compute. "}[place]
    assert answer_text(events) == text
    (turn,) = await chats.turns(done["session_id"])
    contents = [(stored.message.role, stored.message.content) for stored in turn.messages if stored.message.role is not Role.TOOL]
    said = [(Role.ASSISTANT, text)] * (2 if place == "in a tool" else 1)
    assert contents == [(Role.USER, "Hi"), *said]
    ends = {call["id"]: call["ok"] for call in of_type(events, "tool_call")}
    assert ends == ({"call_1": True, "call_2": False} if place == "in a tool" else {})
    (session,) = chats.sessions()
    assert session.hold is None
    assert (await head_of(chats)).state is StreamState.DONE


async def test_a_blocking_turn_that_reaches_its_deadline_is_a_504_and_changes_nothing(chats: StoppedChats) -> None:
    chats.model.script = [END]
    (done,) = of_type(parse_events((await chats.post(BODY)).body), "done")
    session = done["session_id"]
    before = (chats.sessions(), await chats.turns(session))

    async def hang(_: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta("So far ")
        await asyncio.sleep(context.deadline.remaining())
        raise BackendTimeout("The model did not answer in time.")  # as the HTTP client does

    chats.model.script = hang
    began = asyncio.get_running_loop().time()
    answer = await chats.send("POST", f"/a1/agents/{AGENT}/sessions/{session}/messages", {"message": "And now?"})
    assert REQUEST_SECONDS <= elapsed(began) < REQUEST_SECONDS + 1
    assert (answer.status, answer.json["error"]["code"]) == (504, "upstream_timeout")
    assert (chats.sessions(), await chats.turns(session)) == before


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_turn_whose_client_has_left_runs_on_until_its_end_or_its_stop(
    chats: StoppedChats, is_stopped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """AWS runs nothing after the response has ended, so the response must last as long as the turn."""
    seconds = 150

    async def count(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        for number in range(seconds):
            await asyncio.sleep(1)
            yield ChatDelta(f"{number} ")
        yield END

    chats.model.script = count
    client, app = chats.leaving()
    began, seen = asyncio.get_running_loop().time(), Answer()
    turn = asyncio.create_task(client.post(BODY, answer=seen))
    followed = Answer()
    await asyncio.sleep(3.5)
    app.left.set()
    follower = asyncio.create_task(chats.elsewhere.follow("m-1", answer=followed))
    while elapsed(began) < seconds - 10:
        await asyncio.sleep(5)
        head = await head_of(chats)
        assert (head.attempt, head.is_live(virtual_now() + 35)) == (1, True), "the lease is renewed every 20 s"
        numbers = answer_text(receive(followed.body).events).split()
        assert int(numbers[-1]) >= elapsed(began) - 4, "a follower is at most 2 s behind"
        assert not app.has_ended
    if is_stopped:
        stopped = await chats.elsewhere.stop("m-1")
        assert (stopped.status, stopped.json) == (202, {"status": "cancelling"})
    await turn
    assert app.has_ended
    assert (elapsed(began) < seconds - 2) == is_stopped
    await follower
    events = parse_events(followed.body)
    (done,) = of_type(events, "done")
    assert done["finish_reason"] == ("cancelled" if is_stopped else "stop")
    assert followed.body.startswith(seen.body)
    assert b"done" not in seen.body
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (line,) = [line for line in lines if line.get("method") == "POST"]
    assert (line["status"], line["error"]) == (200, None), "nothing failed"
    (stored,) = await chats.turns(done["session_id"])
    assert stored.answer.message.content == answer_text(events)


async def test_a_lost_turn_is_failed_and_its_stop_does_not_reach_the_next_attempt(chats: StoppedChats) -> None:
    async def hang(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta("So far so good. ")
        await asyncio.sleep(3600)

    chats.model.script = hang
    dying = Process()
    lost = asyncio.create_task(chats.post(BODY, process=dying))
    await asyncio.sleep(5)
    dying.crashed = True
    assert await stop(chats) == (202, "cancelling"), "its lease has not expired yet"
    await asyncio.sleep(LEASE_SECONDS + 1)
    assert [await stop(chats), await stop(chats.elsewhere)] == [(200, "failed")] * 2
    answer = Answer()
    second = asyncio.create_task(chats.post(BODY, answer=answer))
    await asyncio.sleep(5)
    assert [await stop(chats), await stop(chats.elsewhere)] == [(202, "cancelling")] * 2
    await second
    events = parse_events(answer.body)
    assert (events[0]["attempt"], of_type(events, "done")[0]["finish_reason"]) == (2, "cancelled")
    assert [await stop(chats), await stop(chats.elsewhere)] == [(200, "done")] * 2
    (session,) = chats.sessions()
    assert (len(await chats.turns(session.id)), session.hold) == (1, None)
    lost.cancel()
    await asyncio.wait({lost})


async def test_a_failed_turn_and_an_unknown_one_are_not_stopped(chats: StoppedChats) -> None:
    chats.model.script = [ChatDelta("So "), BackendTimeout("The model did not answer in time.")]
    assert parse_events((await chats.post(BODY)).body)[-1]["type"] == "error"
    assert await stop(chats) == (200, "failed")
    unknown = await chats.stop("m-2")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "stream_not_found")


async def stop(chats: Chats) -> tuple[int, str]:
    answer = await chats.stop("m-1")
    return answer.status, answer.json["status"]
