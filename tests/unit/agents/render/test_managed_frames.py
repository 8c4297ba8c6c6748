"""The stream of a managed agent: OpenAI's chunks, and one event for the calls of a step and for each result."""

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import combinations
from typing import Any, Final

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError, OpenAI

from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.kinds import AgentContext, BaseAgent
from spass.agents.kinds.native_react import NativeReActAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.kinds.simple import SimpleAgent
from spass.agents.render.chunks import chunk_head
from spass.agents.render.managed_frames import ManagedFrames, failed_run_frames
from spass.core.cost import Cost, CostSource
from spass.core.effects import Infer
from spass.core.events import Event, Failed, InferenceFinished, Nested, Token, ToolCallFinished, ToolCallStarted, collect
from spass.core.ids import RequestId
from spass.core.messages import FinishReason, Message, Role, ToolCall, ToolCallDelta
from spass.core.run_result import AgentRun, RunResult
from spass.core.time import Deadline, Timestamp
from spass.journal.frames import Frame
from spass.models.types import ChatDelta
from tests.unit.agents.driver_harness import USAGE, ScriptedReply, ScriptedWorld, echo

pytestmark = pytest.mark.anyio

REQUEST: Final = RequestId("req_1")
RUN: Final = AgentRun(REQUEST, "agt_1", "orchestrator", "small")
HEAD: Final = chunk_head("run_1", 1795000000, "small")
CHUNK: Final = {"id": "run_1", "object": "chat.completion.chunk", "created": 1795000000, "model": "small"}
COST: Final = Cost(Decimal("0.0000125"), Decimal("0.0000115"), CostSource.CATALOG, 2)
HARD: Final = st.text(st.sampled_from('a"\\\n\r\t\x00\x0b\x0c\x1c\x7f\x85\u2028\u2029\ud800äß漢😀</'), max_size=40)


@dataclass
class DeltaWorld(ScriptedWorld):
    """A model whose replies are these deltas, one list per call of the model."""

    replies: Sequence[Sequence[ChatDelta]] = ()

    async def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        self.effects.append(effect)
        for delta in self.replies[len(self.effects) - 1]:
            yield delta


def frames_of(events: Sequence[Event]) -> list[Frame]:
    """Return the whole stream of a run with these events."""
    writer = ManagedFrames(HEAD, REQUEST)
    frames = [frame for event in events for frame in writer.write(event)]
    if isinstance(events[-1], Failed):
        return [*frames, *writer.fail({"code": events[-1].error.code, "message": events[-1].error.message})]
    return [*frames, *writer.end(RunResult.of(RUN, collect(events), COST, Timestamp("2026-11-23T09:00:00.000Z")))]


def shown(frames: Sequence[Frame]) -> list[tuple[str | None, Any]]:
    """Return the frames with their JSON. The shared fields of the chunks are left out after a check."""
    read: list[tuple[str | None, Any]] = []
    for frame in frames:
        data: Any = json.loads(frame.data) if frame.data != "[DONE]" else "[DONE]"
        if frame.event is None and frame.data != "[DONE]":
            assert {name: data.pop(name) for name in CHUNK} == CHUNK
            (data["choice"],) = data.pop("choices")
            assert data["choice"].pop("index") == 0
        read.append((frame.event, data))
    return read


def text_of(frames: Sequence[Frame]) -> str:
    return "".join(data["choice"]["delta"].get("content", "") for event, data in shown(frames)[:-1] if event is None)


def names_of(frames: Sequence[Frame]) -> list[str]:
    """Return what kinds of frames follow each other; chunks of text that follow each other count once."""
    names = [frame.event or ("text" if frame.is_token else "done" if frame.data == "[DONE]" else "last") for frame in frames]
    return [name for at, name in enumerate(names) if at == 0 or name != "text" or names[at - 1] != "text"]


async def test_a_run_with_a_tool_call_has_exactly_the_frames_of_the_contract() -> None:
    arguments = '{"expression":"2+2"}'
    call = (ToolCallDelta(0, "call_1", "calculator", arguments),)
    world = DeltaWorld(
        [], replies=[[ChatDelta("", call, FinishReason.TOOL_CALLS, USAGE)], [ChatDelta("4", (), FinishReason.STOP)]]
    )
    frames = frames_of(await world.run(OrchestratorAgent()))
    cost = '{"eur":"0.0000115","usd":"0.0000125","source":"catalog","sub_calls":2}'
    usage = f'{{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"cost":{cost}}}'
    head = '{"id":"run_1","object":"chat.completion.chunk","created":1795000000,"model":"small","choices":[{"index":0,"delta":'
    assert [(frame.event, frame.data) for frame in frames] == [
        ("tool_calls", '{"calls":[{"id":"call_1","tool_name":"calculator","arguments":"{\\"expression\\":\\"2+2\\"}"}]}'),
        ("tool_result", '{"tool_name":"calculator","output":"\\"call_1\\"","call_id":"call_1","success":true}'),
        (None, head + '{"content":"4"},"finish_reason":null}]}'),
        (None, head + f'{{}},"finish_reason":"stop"}}],"usage":{usage}}}'),
        (None, "[DONE]"),
    ]


async def test_a_call_cut_into_any_fragments_is_one_event_with_whole_arguments() -> None:
    arguments = '{"expression":"2+2 \\"ä\\""}'
    whole: list[tuple[str | None, Any]] | None = None
    for first, second in [(0, 0), *combinations(range(len(arguments) + 1), 2)]:
        pieces = [arguments[:first], arguments[first:second], arguments[second:]]
        deltas = [ChatDelta("", (ToolCallDelta(0, "call_1", "calculator", pieces[0]),))]
        deltas += [ChatDelta("", (ToolCallDelta(0, arguments=piece),)) for piece in pieces[1:]]
        end = ChatDelta("", (), FinishReason.TOOL_CALLS, USAGE)
        world = DeltaWorld([], replies=[[*deltas, end], [ChatDelta("4"), ChatDelta("", (), FinishReason.STOP)]])
        frames = shown(frames_of(await world.run(OrchestratorAgent())))
        assert frames[0] == ("tool_calls", {"calls": [{"id": "call_1", "tool_name": "calculator", "arguments": arguments}]})
        whole = whole or frames
        assert frames == whole


async def test_the_calls_of_a_step_in_interleaved_fragments_are_one_event() -> None:
    deltas = [
        ChatDelta("Let me see.", (ToolCallDelta(0, "call_1", "add", '{"a"'), ToolCallDelta(1, "call_2", "mul", "{"))),
        ChatDelta("", (ToolCallDelta(1, arguments='"b":2}'),)),
        ChatDelta("", (ToolCallDelta(0, arguments=":1}"),), FinishReason.TOOL_CALLS, USAGE),
    ]
    world = DeltaWorld([], replies=[deltas, [ChatDelta("3", (), FinishReason.STOP)]])
    frames = frames_of(await world.run(OrchestratorAgent()))
    assert names_of(frames) == ["text", "tool_calls", "tool_result", "tool_result", "text", "last", "done"]
    calls = next(data["calls"] for event, data in shown(frames) if event == "tool_calls")
    assert [(call["id"], call["tool_name"], call["arguments"]) for call in calls] == [
        ("call_1", "add", '{"a":1}'),
        ("call_2", "mul", '{"b":2}'),
    ]
    results = [data for event, data in shown(frames) if event == "tool_result"]
    assert {result["call_id"]: result["tool_name"] for result in results} == {"call_1": "add", "call_2": "mul"}


@pytest.mark.parametrize(
    ("agent", "call", "answer"),
    [
        (NativeReActAgent(), "Thought: I look.\nAction: clock\nAction Input: {}", "Thought: easy\nFinal Answer: Noon."),
        (OrchestratorAgent(mode="structured"), "THOUGHT: I look.\nTOOL: clock\nINPUT: {}", "FINAL_ANSWER: Noon."),
    ],
)
async def test_written_calls_are_events_like_those_of_a_provider(agent: BaseAgent, call: str, answer: str) -> None:
    for at in range(len(call)):
        world = ScriptedWorld([ScriptedReply(f"{call[:at]}|{call[at:]}"), ScriptedReply(answer)])
        frames = frames_of(await world.run(agent, context=AgentContext(tools=("clock",))))
        assert names_of(frames) == ["text", "tool_calls", "tool_result", "text", "last", "done"]
        assert text_of(frames) == "I look.Noon."
        (made,) = next(data["calls"] for event, data in shown(frames) if event == "tool_calls")
        assert (made["tool_name"], made["arguments"]) == ("clock", "{}")


async def test_calls_within_a_call_and_progress_are_not_shown() -> None:
    world = ScriptedWorld([ScriptedReply("", ("x",)), ScriptedReply("done")])
    events: list[Event] = []
    for event in await world.run(OrchestratorAgent()):
        events.append(event)
        if isinstance(event, ToolCallStarted):
            inner = replace(event.call, id="inner")
            events += [Nested("helper", event.call.id, ToolCallStarted(inner))]
            events += [Nested("helper", event.call.id, ToolCallFinished(echo(inner)))]
    assert names_of(frames_of(events)) == ["tool_calls", "tool_result", "text", "last", "done"]


async def test_max_turns_ends_with_stop_and_its_flag() -> None:
    world = ScriptedWorld([ScriptedReply("Again.", ("clock",))])
    frames = frames_of(await world.run(OrchestratorAgent(max_turns=2)))
    last = shown(frames)[-2][1]
    assert last["choice"] == {"delta": {}, "finish_reason": "stop"}
    assert last["max_turns_exceeded"] is True
    assert names_of(frames).count("tool_calls") == 1, "the calls of the last step are not performed"


@pytest.mark.parametrize(("reason", "flag"), [(FinishReason.CANCELLED, "cancelled"), (FinishReason.DEADLINE, "deadline")])
async def test_a_stopped_run_ends_each_call_and_has_stop_and_its_flag(reason: FinishReason, flag: str) -> None:
    world, signal, events = ScriptedWorld([ScriptedReply("Wait", ("x", "y"))]), StopSignal(), list[Event]()
    driven = world.driver().run(OrchestratorAgent(), "?", AgentContext())
    async for event in interruptible(driven, signal=signal, deadline=Deadline.after(60), tally=world.scope.tally):
        events.append(event)
        if isinstance(event, ToolCallFinished):
            signal.stop(reason)
    frames = shown(frames_of(events))
    results = {data["call_id"]: (data["success"], data["output"]) for event, data in frames if event == "tool_result"}
    assert [success for success, _ in results.values()] == [True, False]
    assert '"code":"cancelled"' in results["call_0_0"][1]
    assert frames[-2][1]["choice"]["finish_reason"] == "stop"
    assert {name for name in frames[-2][1] if name not in ("choice", "usage")} == {flag}


async def test_an_answer_that_was_cut_off_has_openais_reason() -> None:
    world = ScriptedWorld([ScriptedReply("It is", reason=FinishReason.LENGTH)])
    last = shown(frames_of(await world.run(SimpleAgent())))[-2][1]
    assert last["choice"]["finish_reason"] == "length"
    assert {*last} == {"choice", "usage"}


async def test_a_refusal_is_text_and_a_provider_that_cannot_stream_gives_one_chunk() -> None:
    replies = [[ChatDelta(refusal="I can"), ChatDelta(refusal="not.", finish_reason=FinishReason.STOP)]]
    assert text_of(frames_of(await DeltaWorld([], replies=replies).run(SimpleAgent()))) == "I cannot."
    frames = frames_of(await DeltaWorld([], replies=[[ChatDelta("Whole.", (), FinishReason.STOP, USAGE)]]).run(SimpleAgent()))
    assert names_of(frames) == ["text", "last", "done"]
    assert len(frames) == 3


async def test_think_text_cut_anywhere_is_in_no_frame() -> None:
    text = "<think>secret</think>It is 4."
    for at in range(len(text)):
        frames = frames_of(await ScriptedWorld([ScriptedReply(f"{text[:at]}|{text[at:]}")]).run(SimpleAgent()))
        assert text_of(frames) == "It is 4."
        assert "secret" not in "".join(frame.data for frame in frames)


async def test_an_empty_answer_has_only_an_end() -> None:
    assert names_of(frames_of(await ScriptedWorld([ScriptedReply()]).run(SimpleAgent()))) == ["last", "done"]


async def test_a_run_that_fails_ends_with_the_envelope_and_no_done() -> None:
    frames = frames_of(await ScriptedWorld([RuntimeError("no")]).run(SimpleAgent()))
    (failure,) = frames
    assert failure.event == "error"
    assert json.loads(failure.data) == {
        "error": {"code": "internal_error", "message": "The turn failed on our side."},
        "request_id": "req_1",
    }


def test_a_token_of_100_kb_is_several_chunks_without_a_split_character() -> None:
    frames = ManagedFrames(HEAD, REQUEST).write(Token("ä漢😀x" * 10_000, 1))
    assert len(frames) > 3
    assert all(len(frame.text.encode()) <= 32 * 1024 for frame in frames)
    assert len({(frame.prefix, frame.suffix) for frame in frames}) == 1, "the journal stores them as one run"
    assert text_of([*frames, Frame("[DONE]")]) == "ä漢😀x" * 10_000
    assert ManagedFrames(HEAD, REQUEST).write(Token("", 2)) == ()


def test_long_calls_are_several_events_that_fit_in_an_item_of_the_table() -> None:
    readable = json.dumps({"text": '"' * 30_000})
    garbage = "\x00" * 100_000
    calls = tuple(ToolCall(f"call_{at}", "write", readable if at % 3 else garbage) for at in range(32))
    frames = ManagedFrames(HEAD, REQUEST).write(InferenceFinished(Message(Role.ASSISTANT, "", calls), FinishReason.TOOL_CALLS))
    assert all(len(frame.data.encode()) < 350_000 for frame in frames)
    sent = [call for frame in frames for call in json.loads(frame.data)["calls"]]
    assert [call["id"] for call in sent] == [call.id for call in calls]
    assert {call["arguments"] for call in sent[1:3]} == {readable}
    assert sent[0]["arguments"] == garbage[: len(sent[0]["arguments"])]
    assert len(sent[0]["arguments"]) == 32 * 1024


@given(HARD)
def test_every_frame_is_one_line_with_the_text_of_the_model(text: str) -> None:
    call = ToolCall("call_1", "say", text)
    outcome = replace(echo(call), message=Message(Role.TOOL, text, tool_call_id="call_1"))
    writer, readable = ManagedFrames(HEAD, REQUEST), text.encode("utf-8", "replace").decode()
    said = InferenceFinished(Message(Role.ASSISTANT, text, (call,)), FinishReason.TOOL_CALLS)
    for event in (Token(text, 1), said, ToolCallFinished(outcome)):
        for frame in writer.write(event):
            assert len(f"data: {frame.data}".splitlines()) == 1
    assert all(frame.is_token for frame in writer.write(Token(text, 1)))
    (calls,) = writer.write(said)
    assert json.loads(calls.data)["calls"][0]["arguments"] == readable
    (result,) = writer.write(ToolCallFinished(outcome))
    assert json.loads(result.data)["output"] == readable


def openai_over(frames: Sequence[Frame]) -> Iterator[Any]:
    """Yield what the SDK of OpenAI reads of a response with these frames."""

    def line(number: int, frame: Frame) -> str:
        name = f"event: {frame.event}\n" if frame.event else ""
        return f"id: 1-{number}\n{name}data: {frame.data}\n\n"

    body = "retry: 1000\n" + "".join(line(number, frame) for number, frame in enumerate(frames, 1))

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=body.encode(), headers={"Content-Type": "text/event-stream"})

    transport = httpx2.MockTransport(answer)
    with OpenAI(api_key="x", base_url="http://localhost/v1", http_client=httpx2.Client(transport=transport)) as client:
        yield from client.chat.completions.create(model="small", messages=[], stream=True)


async def test_openais_sdk_reads_a_stream_to_its_end_and_raises_its_failure() -> None:
    world = ScriptedWorld([ScriptedReply("Let me see.", ("clock",)), ScriptedReply("It |is |noon.")])
    read = [*openai_over(frames_of(await world.run(OrchestratorAgent())))]
    chunks = [chunk for chunk in read if chunk.object == "chat.completion.chunk"]
    assert len(read) == len(chunks) + 2, "the calls and their result are there too"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Let me see.It is noon."
    assert chunks[-1].choices[0].finish_reason == "stop"
    failure = failed_run_frames({"code": "upstream_error", "message": "The model failed."}, REQUEST)
    with pytest.raises(APIError, match="The model failed"):
        [*openai_over([*frames_of(await world.run(OrchestratorAgent()))[:1], *failure])]
