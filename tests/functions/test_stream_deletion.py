"""Deleting a session leaves no word of it in the table or the bucket, nor of its streams, however they ended. Time is virtual."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import pytest

from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.errors import AttemptFailed, BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.leases import LEASE_SECONDS
from spass.store.writes import Item
from spass.testing.model import in_turn
from tests.functions.stored_texts import journal_texts
from tests.simulated.chats import AGENT, Answer, Chats, Process
from tests.stream_grammar import of_type, parse_events, receive

pytestmark = pytest.mark.anyio

WORD: Final = "Zanzibar"
USAGE: Final = TokenUsage(10, 5)
CALL: Final = ToolCallDelta(0, "call_1", "calculator", json.dumps({"expression": f"'{WORD}'"}))
ENDS: Final = ("done", "failed", "stopped", "lost", "lost before its first event", "running")


def body(message_id: str, session: str | None, *, word: str = WORD, entries: int = 0, length: int = 1) -> dict[str, Any]:
    earlier = [{"role": ("user", "assistant")[at % 2], "content": f"{word} " * length} for at in range(entries)]
    name = {} if session is None else {"session_id": session}
    return {"message_id": message_id, "messages": [*earlier, {"role": "user", "content": f"{word}?"}], **name}


async def talk(_: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
    """Answer with the word in several steps and chunks, with pauses."""
    for _round in range(4):
        yield ChatDelta(f"{WORD} is far. ")
        await asyncio.sleep(2)
    yield ChatDelta(finish_reason=FinishReason.STOP, usage=USAGE)


async def stream_that(chats: Chats, end: str, message_id: str, session: str) -> Answer:
    """Send a chat whose turn calls a tool, writes the word and ends by ``end``."""
    calls = [ChatDelta(f"{WORD}: "), ChatDelta(tool_calls=(CALL,), finish_reason=FinishReason.TOOL_CALLS, usage=USAGE)]
    answers = iter([calls])
    process = Process()

    def answer(request: ChatRequest, context: CallContext) -> Any:
        if end == "failed":
            return next(answers, [ChatDelta(f"{WORD} is "), AttemptFailed("down")])
        return next(answers, None) or talk(request, context)

    chats.model.script = answer
    posting = asyncio.create_task(chats.post(body(message_id, session), process=process))
    await asyncio.sleep(0.013 if end == "lost before its first event" else 3)
    if end == "stopped":
        assert (await chats.stop(message_id)).status == 202
    if end.startswith("lost"):
        process.crashed = True
    return await posting


def key_of(item: Item) -> str:
    return " ".join(str(item[name]) for name in ("pk", "sk"))


def traces(chats: Chats, *sessions: str) -> list[str]:
    """Return the keys of all that is stored and contains the word or belongs to one of ``sessions``, except audit records."""
    items = [item for item in chats.items() if "#AUDIT#" not in str(item["pk"])]
    objects = {key: stored.decode(errors="replace") for key, stored in chats.aws.bucket.objects.items()}
    found = [key_of(item) for item in items if any(name in str(item) for name in (WORD, *sessions))]
    found += [key_of(item) for item in items if "#STREAM#" in str(item["pk"])]
    found += [key for key, stored in objects.items() if any(name in key + stored for name in (WORD, *sessions))]
    return [*found, *(text for text in journal_texts(items) if WORD in text)]


def texts_by_key(chats: Chats) -> dict[str, str]:
    """Return all items except the counters of usage and of limits."""
    items = [item for item in chats.items() if "#USAGE#" not in str(item["pk"]) and "#LIMIT#" not in str(item["pk"])]
    return {key_of(item): str(item) for item in items}


async def delete(chats: Chats, session: str) -> Answer:
    return await chats.send("DELETE", f"/a1/agents/{AGENT}/sessions/{session}")


@pytest.mark.parametrize("end", ENDS)
async def test_a_deleted_session_leaves_no_word_of_its_streams(chats: Chats, end: str) -> None:
    await chats.post(body("other", "other", word="Cairo"))
    before = texts_by_key(chats)
    await chats.post(body("first", "mine", entries=3))
    if end == "running":
        turn = asyncio.create_task(stream_that(chats, end, "m-1", "mine"))
        await asyncio.sleep(2)
        assert (await delete(chats, chats.sessions()[-1].id)).status == 409, "the turn holds the session"
        await turn
    else:
        answer = await stream_that(chats, end, "m-1", "mine")
        assert (receive(answer.body).events != []) == (end != "lost before its first event")
    await asyncio.sleep(LEASE_SECONDS + 1)
    session = chats.sessions()[-1].id
    assert traces(chats, session)
    assert (await delete(chats, session)).json == {"deleted": True}
    assert [trace for trace in traces(chats, session) if trace not in before] == []
    for message_id in ("first", "m-1"):
        for gone in (await chats.follow(message_id), await chats.stop(message_id)):
            assert (gone.status, gone.json["error"]["code"]) == (404, "stream_not_found")
    assert before.items() <= texts_by_key(chats).items(), "the user's other streams remain"
    assert parse_events((await chats.follow("other")).body)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the source first", "the successor first"])
@pytest.mark.parametrize(
    "length", [1, 100, 1500], ids=["moved in the turn", "moved before the turn", "with objects in the bucket"]
)
async def test_each_session_of_a_moved_stream_takes_its_part_with_it(chats: Chats, order: tuple[int, int], length: int) -> None:
    overflow = [BackendContextLength("Too long.", status=400)] if length == 1 else []
    chats.model.script = in_turn([*overflow, f"{WORD} was said.", f"{WORD} is far."])
    answer = await chats.post(body("m-1", None, entries=40, length=length))
    (done,) = of_type(parse_events(answer.body), "done")
    sessions = (done["compaction"]["source_session_id"], done["session_id"])
    assert sessions[0] != sessions[1]
    assert bool(chats.aws.bucket.objects) == (length == 1500)
    for session in (sessions[at] for at in order):
        assert (await delete(chats, session)).json == {"deleted": True}
        for gone in (await chats.follow("m-1"), await chats.stop("m-1")):
            assert (gone.status, gone.json["error"]["code"]) == (404, "stream_not_found")
        assert not [item for item in chats.items() if str(item["sk"]).startswith("STREAM#") and session in str(item["pk"])]
    left = [item for item in chats.items() if WORD in str(item) and "#AUDIT#" not in str(item["pk"])]
    assert left == []
    assert not [key for key, stored in chats.aws.bucket.objects.items() if WORD.encode() in stored]
    assert not [key for key in texts_by_key(chats) if "STREAM#" in key]


async def test_a_deleted_session_takes_the_stream_of_a_message_with_a_key_with_it(chats: Chats) -> None:
    await chats.post(body("first", "mine"))
    session = chats.sessions()[-1].id
    path, key = f"/a1/agents/{AGENT}/sessions/{session}/messages", {"idempotency-key": "key-1"}
    chats.model.script = f"{WORD} is far."
    answer = await chats.send("POST", path, {"message": f"{WORD}?", "stream": True}, headers=key)
    message_id = str(parse_events(answer.body)[0]["message_id"])
    assert (await chats.follow(message_id)).body == answer.body
    assert (await delete(chats, session)).status == 200
    assert (await chats.follow(message_id)).status == 404
    (record,) = traces(chats, session)
    assert "#IDEM#" in record, "the stored answer of an Idempotency-Key outlives its session for 24 hours"
