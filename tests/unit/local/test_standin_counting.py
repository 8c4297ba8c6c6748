"""The stand-in counts when asked to, slowly in a stream, so that a reader can cut, resume and stop it."""

import asyncio
import json

import httpx2
import pytest

from local.standin.app import app
from local.standin.counting import requested_count
from local.standin.wire import complete
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


@pytest.mark.parametrize(
    ("request_text", "last", "is_slow"),
    [
        ("Count slowly to 40.", 40, True),
        ("Count to 3", 3, False),
        ("Zähle langsam bis 40.", 40, True),
        ("Count slowly to 999999999.", 200, True),
    ],
)
def test_it_counts_in_both_languages_up_to_200(request_text: str, last: int, is_slow: bool) -> None:
    count = requested_count(request_text)
    assert count is not None
    assert count.text.split() == [str(number) for number in range(1, last + 1)]
    assert (count.pause_seconds > 0) is is_slow


@pytest.mark.parametrize(
    "question",
    [
        "How do I count to 40?",
        "I count slowly to 40 before I answer. Which sport do I like?",
        "Count slowly to 0.",
    ],
)
def test_other_questions_are_not_a_request_to_count(question: str) -> None:
    assert requested_count(question) is None


def test_a_tool_that_the_caller_demands_comes_before_the_count() -> None:
    tools = [{"type": "function", "function": {"name": "count", "parameters": {}}}]
    request = {"messages": [{"role": "user", "content": "Count slowly to 9."}], "tools": tools, "tool_choice": "required"}
    assert [call["function"]["name"] for call in complete(request).tool_calls] == ["count"]


async def test_a_slow_count_takes_its_time_in_a_stream_only() -> None:
    streamed, seconds = await _ask("Count slowly to 40.", stream=True)
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert [piece.strip() for piece in pieces if piece] == [str(number) for number in range(1, 41)]
    assert 39 * 0.15 <= seconds <= 45 * 0.15
    blocking, seconds = await _ask("Count slowly to 40.", stream=False)
    assert json.loads(blocking)["choices"][0]["message"]["content"] == "".join(pieces)
    assert seconds == 0


@pytest.mark.parametrize("question", ["Count to 40.", "Who wrote Hamlet?"])
async def test_no_other_answer_has_pauses(question: str) -> None:
    _, seconds = await _ask(question, stream=True)
    assert seconds == 0


async def _ask(question: str, *, stream: bool) -> tuple[str, float]:
    """Return the body of the answer, and the seconds that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as client:
        body = {"model": "any", "messages": [{"role": "user", "content": question}], "stream": stream}
        answer = await client.post("http://stand-in/v1/chat/completions", json=body)
    return answer.text, loop.time() - began
