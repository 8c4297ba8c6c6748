"""Frames: the data of each is exactly the line that a stream without frames sends."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.render.events import EventWriter, StreamEvent, StreamName
from spass.agents.render.frames import FrameWriter, failure_frames
from spass.core.events import InferenceStarted, Status, Token, ToolCallStarted, ToolProgress, TurnStarted
from spass.core.ids import RequestId, SessionId
from spass.core.messages import ToolCall
from spass.journal.frames import Frame, json_frame
from spass.web.sse import stream_response, yield_frames
from tests.unit.agents.render.test_events import OUTCOME

pytestmark = pytest.mark.anyio

REQUEST, SESSION, SUCCESSOR = RequestId("req_1"), SessionId("ses_1"), SessionId("ses_2")
HARD = st.text(st.sampled_from('a"\\\n\r\t\x00\x0b\x0c\x1c\x7f\x85\u2028\u2029\ud800\udfffäß漢😀</'), max_size=40)
TEXTS = st.text(st.characters(), max_size=40) | HARD


def writer(**options: Any) -> FrameWriter:
    return FrameWriter(EventWriter(REQUEST, "librarian", SESSION, **options))


async def sent(*events: Any) -> str:
    """Return the body of a stream of ``events`` without frames."""
    response = await stream_response(yield_frames([json_frame(event) for event in events]), REQUEST)
    return b"".join([data async for data in response.body_iterator if isinstance(data, bytes)]).decode()


@given(TEXTS, st.integers(1, 10_000))
async def test_the_frame_of_a_token_is_the_line_that_a_stream_sends(text: str, step: int) -> None:
    event: StreamEvent = {"type": "token", "content": text, "step": step}
    (frame,) = writer().write(Token(text, step))
    assert f"data: {frame.data}\n\n" == await sent(event)
    assert frame.is_token
    assert json.loads(frame.data) == event | {"content": text.encode("utf-8", "replace").decode()}
    assert len(frame.data.splitlines()) == 1


@given(TEXTS)
async def test_every_other_frame_is_the_line_that_a_stream_sends(text: str) -> None:
    call = ToolCall("call_1", text, json.dumps({"text": text}))
    for event in (Status(text), ToolProgress("call_1", text), ToolCallStarted(call), TurnStarted()):
        (rendered,) = EventWriter(REQUEST, "librarian", SESSION).write(event)
        (frame,) = writer().write(event)
        assert f"data: {frame.data}\n\n" == await sent(rendered)
        assert not frame.is_token
        assert len(frame.data.splitlines()) == 1


def test_tokens_of_one_step_share_all_but_their_text() -> None:
    frames = writer()
    first, second, other = (frame for step in (1, 1, 2) for frame in frames.write(Token("a", step)))
    assert (first.prefix, first.suffix) == (second.prefix, second.suffix) != (other.prefix, other.suffix)
    assert first == Frame("a", '{"type":"token","content":"', '","step":1}')


def test_a_long_token_is_several_frames_and_events_that_are_not_shown_are_none() -> None:
    frames = writer().write(Token("ä" * 20_000, 1))
    assert "".join(json.loads(frame.data)["content"] for frame in frames) == "ä" * 20_000
    assert all(len(frame.text.encode()) <= 32 * 1024 for frame in frames)
    assert writer().write(InferenceStarted(1)) == []


def test_the_end_of_a_run_is_complete_usage_done_or_two_errors() -> None:
    frames = writer().end(OUTCOME)
    assert [json.loads(frame.data) for frame in frames] == list(EventWriter(REQUEST, "librarian", SESSION).write(OUTCOME))
    failure = [json.loads(frame.data) for frame in failure_frames({"code": "turn_lost", "message": "Lost."}, REQUEST)]
    assert [event["type"] for event in failure] == ["status_update", "error"]
    assert failure[1]["error"]["code"] == "turn_lost"


def test_a_stream_that_can_be_followed_names_itself_and_each_of_its_sessions() -> None:
    frames = writer(stream=StreamName("msg-1", 2))
    (first,) = frames.write(TurnStarted())
    (moved,) = frames.move(SUCCESSOR)
    planning = {"type": "status_update", "status": "planning", "request_id": "req_1"}
    begins, moves = (json.loads(frame.data) for frame in (first, moved))
    name = {"message_id": "msg-1", "attempt": 2}
    assert begins == planning | name | {"session_id": "ses_1", "detail": "librarian begins to work."}
    assert moves == planning | name | {"session_id": "ses_2", "detail": moves["detail"]}
