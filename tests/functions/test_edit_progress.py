"""A client of a stream sees that a long edit goes on. Time is virtual."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from spass.calls.scope import ReportProgress
from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import Answer as ModelAnswer
from spass.tools.editor.protocol import Ask, EditRequest, EditResult, MayEdit
from tests.functions.stopped_turns import StoppedChats
from tests.simulated.chats import Answer, virtual_clocks
from tests.stream_grammar import of_type, parse_events, receive

pytestmark = pytest.mark.anyio

CALL: Final = ToolCallDelta(0, "call_1", "aider_edit", json.dumps({"message": "Edit.", "files": ["main.py"]}))
BODY: Final = {"message_id": "m-1", "session_id": "chat", "messages": [{"role": "user", "content": "Hi"}]}
SECONDS: Final = 16.0


class SilentEditor:
    """An editor that needs 16 seconds and reports nothing."""

    async def edit(self, request: EditRequest, ask: Ask, may_edit: MayEdit, report: ReportProgress) -> EditResult:
        await asyncio.sleep(SECONDS)
        return EditResult({"main.py": "x = 1\n"}, "Done.")


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncGenerator[StoppedChats, None]:
    with virtual_clocks():
        yield StoppedChats(tmp_path)


def answer(request: ChatRequest, _: CallContext) -> ModelAnswer:
    if request.messages[-1].tool_call_id is not None:
        return "Done."
    return [ChatDelta(tool_calls=(CALL,), finish_reason=FinishReason.TOOL_CALLS, usage=TokenUsage(10, 5))]


async def test_an_edit_of_16_seconds_shows_progress_at_least_three_times(chats: StoppedChats) -> None:
    chats.services.__dict__["editor"] = SilentEditor()
    chats.model.script = answer
    received, shown = Answer(), 0
    moments: list[float] = []
    turn = asyncio.create_task(chats.post(BODY, answer=received))
    while not turn.done():
        await asyncio.sleep(0.1)
        events = receive(received.body).events
        if len(events) > shown:
            moments.append(asyncio.get_running_loop().time())
        shown = len(events)
    assert len([event for event in receive(received.body).events if "progress" in event]) >= 3
    assert max(after - before for before, after in pairwise(moments)) <= 5.0
    assert moments[-1] - moments[0] >= SECONDS
    assert of_type(parse_events(received.body), "done")[0]["finish_reason"] == "stop"
    assert chats.versions() == [1]
