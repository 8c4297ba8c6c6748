"""The statements that the seed makes about the streaming of managed agents, through HTTP.

Those about single frames, the mailbox, ``max_turns``, providers that cannot stream and 503 are in ``test_managed_streams`` and
``test_managed_refusals``. Where the page and the seed differ, the page decides: a call has an ``id``, a result ``call_id`` and
``success``, and ``output`` is the text that the model received.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from spass.core.messages import FinishReason, Role, TokenUsage, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.aws import MemoryAws
from spass.testing.model import ScriptedModel, calls
from tests.functions.gateway import write_operators_files
from tests.functions.managed_agents import AGENTS, ManagedClient, execute, read_frames
from tests.functions.stream_workers import Worker, virtual_time

USAGE = TokenUsage(10, 5)


def test_tokens_arrive_as_the_model_generates_them_here_and_at_a_follower(tmp_path: Path) -> None:
    async def write_slowly(_request: ChatRequest, _context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        for word in ("One ", "two ", "three."):
            yield ChatDelta(word)
            await asyncio.sleep(20)
        yield ChatDelta(finish_reason=FinishReason.STOP, usage=USAGE)

    async def read() -> None:
        worker = Worker.start(write_operators_files(tmp_path), ScriptedModel(write_slowly), MemoryAws())
        made = await worker.send("POST", AGENTS, body={"name": "slow", "agent": "simple"})
        path = f"{AGENTS}/{made.json['id']}"
        body = {"content": "Count to three.", "stream": True}
        early = await worker.send("POST", f"{path}/messages", body=body, seconds=10)
        assert b'"content":"One' in early.body
        assert b"two" not in early.body
        (run,) = (await worker.send("GET", f"{path}/runs")).json["runs"]
        assert run["status"] == "running"
        followed = await worker.send("GET", f"{path}/runs/{run['id']}/stream", seconds=15)
        assert b'"content":"two' in followed.body
        assert b"three" not in followed.body
        assert followed.body.startswith(early.body.rpartition(b"id: ")[0])
        whole = await worker.send("GET", f"{path}/runs/{run['id']}/stream")
        assert whole.body.endswith(b"data: [DONE]\n\n")
        *_, answer = (await worker.send("GET", f"{path}/messages")).json["messages"]
        assert (answer["direction"], answer["content"]) == ("agent_to_user", "One two three.")
        await worker.wait()

    with virtual_time() as loop:
        loop.run_until_complete(read())


@pytest.mark.parametrize("receives", [1, 2, 5])
def test_a_run_that_is_delivered_again_makes_one_answer(client: ManagedClient, receives: int) -> None:
    agent = client.create()
    run = client.send("POST", f"/{agent}/run", {"input": "Hello."}).json["id"]
    for number in range(1, receives + 1):
        execute(client.gateway, agent, run, number)
    assert len(client.gateway.model.requests) == 1
    assert [message["direction"] for message in client.messages(agent)] == ["agent_to_user"]


def test_the_conversation_so_far_is_loaded_whatever_started_the_runs(client: ManagedClient) -> None:
    agent = client.create()
    for number in range(3):
        client.gateway.model.script = f"Answer {number}."
        body = {"content": f"Question {number}.", "stream": number != 1}
        client.send("POST", f"/{agent}/messages", body)
        if number == 1:
            execute(client.gateway, agent, client.send("POST", f"/{agent}/run").json["id"])
    texts = [message.content for message in client.gateway.model.requests[-1].messages if message.role is not Role.SYSTEM]
    assert texts == ["Question 0.", "Answer 0.", "Question 1.", "Answer 1.", "Question 2."]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_the_whole_streamed_text_is_stored_also_that_beside_tool_calls(client: ManagedClient, is_streamed: bool) -> None:
    """The text of the steps is one text, in the stream as in the mailbox, and the model reads its own messages as they were."""

    def think_aloud(request: ChatRequest, _context: CallContext) -> Sequence[ChatDelta]:
        if request.messages[-1].role is Role.TOOL:
            return [ChatDelta("It is "), ChatDelta("2.", finish_reason=FinishReason.STOP, usage=USAGE)]
        return calls(("calculator", {"expression": "1+1"}), text="I compute. ")

    client.gateway.model.script = think_aloud
    agent = client.create(agent="orchestrator", tools=["calculator"])
    if is_streamed:
        client.send("POST", f"/{agent}/messages", {"content": "Count.", "stream": True})
        run = client.runs(agent)[0]["id"]
    else:
        run = client.send("POST", f"/{agent}/run", {"input": "Count."}).json["id"]
        execute(client.gateway, agent, run)
    chunks = [data for name, data in read_frames(client.send("GET", f"/{agent}/runs/{run}/stream")) if name is None]
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk != "[DONE]")
    assert streamed == client.messages(agent)[-1]["content"] == "I compute. It is 2."
    client.gateway.model.script = "Good."
    client.send("POST", f"/{agent}/messages", {"content": "And?", "stream": True})
    earlier = [message.content for message in client.gateway.model.requests[-1].messages if message.role is Role.ASSISTANT]
    assert earlier == ["I compute. ", "It is 2."]


def test_results_go_back_to_the_model_until_it_answers_in_text(client: ManagedClient) -> None:
    def think_twice(request: ChatRequest, _context: CallContext) -> Sequence[ChatDelta]:
        done = sum(message.role is Role.TOOL for message in request.messages)
        if done == 2:
            return [ChatDelta("Both are done.", finish_reason=FinishReason.STOP, usage=USAGE)]
        call = ToolCallDelta(0, f"call_{done}", "calculator", f'{{"expression": "{done}+1"}}')
        return [ChatDelta(tool_calls=(call,), finish_reason=FinishReason.TOOL_CALLS, usage=USAGE)]

    client.gateway.model.script = think_twice
    agent = client.create(agent="orchestrator", tools=["calculator"])
    frames = read_frames(client.send("POST", f"/{agent}/messages", {"content": "Count.", "stream": True}))
    assert [name for name, _ in frames if name] == ["tool_calls", "tool_result"] * 2
    assert [data["call_id"] for name, data in frames if name == "tool_result"] == ["call_0", "call_1"]
    assert client.runs(agent)[0]["turns"] == 3
    assert client.messages(agent)[-1]["content"] == "Both are done."
