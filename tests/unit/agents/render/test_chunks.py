"""A collected stream is the blocking answer."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spass.agents.render.chunks import Chunk, ChunkWriter, chunk_head, replay_chunks
from spass.completions.answer import AnswerBuilder, pipeline_events
from spass.completions.responses import ChatCompletion
from spass.core.cost import Cost, CostSource, CostTally
from spass.core.events import Event, TurnFinished
from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.types import ChatDelta
from tests.unit.collected_replies import collect_deltas
from tests.unit.completions.chunk_collector import collect_chunks, read_chunks

COST = Cost(Decimal("0.0000125"), Decimal("0.0000115"), CostSource.CATALOG, 2)
USAGE = TokenUsage(3, 4)

ARGUMENTS = st.text(max_size=5)
FIRST_PIECES = st.builds(ToolCallDelta, st.just(0), st.just("call_a"), st.just("add"), ARGUMENTS)


@st.composite
def deltas(draw: st.DrawFn) -> list[ChatDelta]:
    """Draw an answer as a provider may stream it: text, tool calls and refusals in arbitrary pieces, names at any time."""
    drawn: list[ChatDelta] = []
    started: set[int] = set()
    named: set[int] = set()
    for _ in range(draw(st.integers(0, 6))):
        pieces: list[ToolCallDelta] = []
        for index in draw(st.lists(st.integers(0, 2), max_size=2, unique=True)):
            first = index not in started
            started.add(index)
            identity = draw(st.none() | st.just(f"call_{index}x")) if first else None
            name = draw(st.none() | st.just("add")) if index not in named else None
            named |= {index} if name else set()
            pieces.append(ToolCallDelta(index, identity, name, draw(ARGUMENTS)))
        drawn.append(ChatDelta(draw(st.text(max_size=5)), tuple(pieces), refusal=draw(st.just("") | st.text(max_size=5))))
    return [*drawn, ChatDelta(tool_calls=tuple(ToolCallDelta(index, None, "add") for index in sorted(started - named)))]


def events_of(answer: Sequence[ChatDelta]) -> list[Event]:
    """Return the events of an answer with ``COST`` that the pipeline gives in these deltas."""
    tally = CostTally()
    tally.add(COST)

    async def pipeline() -> AsyncGenerator[ChatDelta, None]:
        for delta in answer:
            yield delta
        yield ChatDelta(finish_reason=FinishReason.STOP, usage=USAGE)

    async def run() -> list[Event]:
        return [event async for event in pipeline_events(pipeline(), tally)]

    return asyncio.run(run())


def chunks_of(answer: Sequence[ChatDelta], *, include_usage: bool) -> list[Chunk]:
    writer = ChunkWriter(AnswerBuilder("small").head, include_usage=include_usage)
    return read_chunks(frame for event in events_of(answer) for frame in writer.write(event))


def blocking_of(answer: Sequence[ChatDelta]) -> ChatCompletion:
    builder = AnswerBuilder("small")
    for event in events_of(answer):
        builder.add(event)
    return builder.build()


def comparable(answer: ChatCompletion) -> ChatCompletion:
    return answer.model_copy(update={"id": "", "created": 0})


@given(deltas(), st.booleans())
def test_a_collected_stream_is_the_blocking_answer(answer: list[ChatDelta], include_usage: bool) -> None:
    reply = collect_deltas(answer)
    blocking = blocking_of(answer)
    assert comparable(collect_chunks(chunks_of(answer, include_usage=include_usage))) == comparable(blocking)
    message = blocking.choices[0].message
    assert (message.content or "", message.refusal or "") == (reply.message.content, reply.refusal)
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
    assert sorted(calls) == sorted((call.id, call.name, call.arguments) for call in reply.message.tool_calls)
    assert blocking.usage == collect_chunks(chunks_of([], include_usage=False)).usage


@given(deltas(), st.booleans())
def test_a_replayed_answer_collects_to_itself(answer: list[ChatDelta], include_usage: bool) -> None:
    stored = blocking_of(answer)
    replayed = list(replay_chunks(stored.to_dict(), include_usage=include_usage))
    assert collect_chunks(replayed) == stored
    assert replayed[-1]["usage"] == stored.to_dict()["usage"]
    assert {chunk["object"] for chunk in replayed} == {"chat.completion.chunk"}


def test_a_stream_of_text_has_openais_chunks() -> None:
    chunks = chunks_of([ChatDelta("He"), ChatDelta("llo")], include_usage=True)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in [
            ({"role": "assistant", "content": "", "refusal": None}, None),
            ({"content": "He"}, None),
            ({"content": "llo"}, None),
            ({}, "stop"),
        ]
    ] + [[]]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "cost": 0.0000125,
        "cost_details": {"eur": "0.0000115", "usd": "0.0000125", "source": "catalog", "sub_calls": 2},
    }
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert str(chunks[0]["id"]).startswith("chatcmpl-")


@given(st.decimals(0, 10**6, places=8), st.decimals(0, 10**6, places=8))
def test_a_cost_is_written_without_rounding_errors(one: Decimal, other: Decimal) -> None:
    cost = Cost(one, one, CostSource.CATALOG, 1) + Cost(other, other, CostSource.CATALOG, 1)
    writer = ChunkWriter(chunk_head("chatcmpl-1", 1, "small"), include_usage=False)
    chunks = read_chunks(writer.write(TurnFinished(FinishReason.STOP, USAGE, cost)))
    usage: Any = json.loads(json.dumps(chunks[-1]["usage"]), parse_float=Decimal)
    assert usage["cost"] == one + other == Decimal(usage["cost_details"]["usd"])


def test_without_include_usage_the_last_chunk_has_the_usage() -> None:
    *before, last = chunks_of([ChatDelta("Hello")], include_usage=False)
    assert all("usage" not in chunk for chunk in before)
    assert isinstance(last["usage"], dict)
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]


def test_a_streamed_call_has_its_name_once_and_arguments_in_pieces() -> None:
    answer = [
        ChatDelta(tool_calls=(ToolCallDelta(0, "call_a", "add", '{"a"'),)),
        ChatDelta(tool_calls=(ToolCallDelta(0, arguments=": 1}"),)),
    ]
    chunks = chunks_of(answer, include_usage=False)
    collected = collect_chunks(chunks)
    function = {"name": "add", "arguments": '{"a": 1}'}
    message = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "call_a", "type": "function", "function": function}],
    }
    assert collected.to_dict()["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert '"name"' not in repr(chunks[2]).replace("'", '"')


def test_a_refusal_is_in_its_own_field() -> None:
    chunks = chunks_of([ChatDelta(refusal="I can"), ChatDelta(refusal="not.")], include_usage=False)
    streamed: list[Any] = [chunk["choices"] for chunk in chunks]
    assert [choices[0]["delta"] for choices in streamed] == [
        {"role": "assistant", "content": None, "refusal": None},
        {"refusal": "I can"},
        {"refusal": "not."},
        {},
    ]
    choices: Any = collect_chunks(chunks).to_dict()["choices"]
    assert choices[0]["message"] == {"role": "assistant", "content": None, "refusal": "I cannot."}


def test_an_answer_without_deltas_is_an_empty_text() -> None:
    assert collect_chunks(chunks_of([], include_usage=False)).to_dict()["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "", "refusal": None}, "logprobs": None, "finish_reason": "stop"}
    ]


def test_an_answer_that_the_release_before_stored_is_replayed() -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "call_a", "type": "function", "function": function}
    message = {"role": "assistant", "content": "Let me see.", "refusal": None, "tool_calls": [call]}
    details = {"eur": "0.0000115", "usd": "0.0000125", "source": "catalog", "sub_calls": 2}
    stored: dict[str, Any] = {
        "id": "chatcmpl-01m82",
        "object": "chat.completion",
        "created": 1795000000,
        "model": "small",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "cost": 0.0000125, "cost_details": details},
    }
    first, last = replay_chunks(stored, include_usage=False)
    assert first["choices"] == [
        {"index": 0, "delta": {**message, "tool_calls": [{"index": 0, **call}]}, "logprobs": None, "finish_reason": None}
    ]
    assert last["usage"] == stored["usage"]
    assert collect_chunks([first, last]).to_dict() == stored
