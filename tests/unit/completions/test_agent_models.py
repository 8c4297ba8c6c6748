"""An agent as a model: when its text is sent, and what happens to its tools when the client leaves."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import pytest

from spass.agents.engine import Engine
from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec
from spass.completions.agent_models import AgentModels
from spass.completions.service import Completions
from spass.core.errors import UpstreamError
from spass.core.messages import FinishReason, ToolCallDelta
from spass.journal.frames import Frame
from spass.models.errors import BackendUnavailable
from spass.models.types import ChatDelta
from spass.store.tenant_store import TenantStore
from spass.tenancy.settings import Cascade
from spass.testing.model import Deltas, in_turn
from tests.unit.calls.scripted_provider import CONFIG, audit_of, calls_of, make_scope, scripted_model
from tests.unit.completions.chunk_collector import read_chunks
from tests.unit.completions.no_services import no_toolbox
from tests.unit.completions.test_service import chat
from tests.unit.tools.fakes import FakeReader, rag_with, toolbox_of

pytestmark = pytest.mark.anyio

SEARCH: Final = [
    ChatDelta(
        tool_calls=(ToolCallDelta(0, "call_1", "rag_query", '{"index_id": "notes", "query": "x"}'),),
        finish_reason=FinishReason.TOOL_CALLS,
    )
]
AGENTS: Final = (
    AgentSpec(name="plain", model="small"),
    AgentSpec(name="simple", kind="simple", model="small", tools=("rag_query",)),
    AgentSpec(name="searching", model="small", tools=("rag_query",)),
    AgentSpec(name="reacting", kind="native_react", model="small", tools=("rag_query",)),
)


class WaitingReader(FakeReader):
    """A search that does not end. It says when it has begun and when it was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

    async def query(self, *_: object, **__: object) -> Any:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


def service(script: Sequence[Deltas], reader: FakeReader | None = None) -> Completions:
    cascade, reader = Cascade(CONFIG), reader or FakeReader()
    calls = calls_of(scripted_model(in_turn(script)))
    engine = Engine(calls, toolbox_of(rag=rag_with(reader), cascade=cascade), lambda: reader, cascade)
    models = AgentModels(engine, lambda: AgentRegistry(AGENTS))
    return Completions(calls, CONFIG, cascade, no_toolbox, lambda: models)


def deltas(frames: Sequence[Frame]) -> list[str | None]:
    return [choice["delta"].get("content") for chunk in read_chunks(frames) for choice in chunk["choices"]]


@pytest.mark.parametrize("agent", ["plain", "simple"])
async def test_text_is_sent_at_once_if_the_agent_cannot_call_a_tool(store: TenantStore, agent: str) -> None:
    frames = []
    with pytest.raises(UpstreamError):
        async for frame in service([[ChatDelta("Once "), ChatDelta("upon"), BackendUnavailable("down")]]).stream(
            make_scope(store), chat(model=f"agent/{agent}", stream=True)
        ):
            frames.append(frame)
    assert deltas(frames) == ["", "Once ", "upon"]


@pytest.mark.parametrize("agent", ["searching", "reacting"])
async def test_text_beside_a_call_is_never_sent(store: TenantStore, agent: str) -> None:
    written = 'I search.\nAction: rag_query\nAction Input: {"index_id": "notes", "query": "x"}'
    first = [ChatDelta(written)] if agent == "reacting" else [ChatDelta("I search."), *SEARCH]
    stream = service([first, [ChatDelta("Not"), ChatDelta("hing.")]]).stream(
        make_scope(store), chat(model=f"agent/{agent}", stream=True)
    )
    texts = deltas([frame async for frame in stream])
    assert texts[0] == ""
    assert "".join(filter(None, texts)) == "Nothing."


async def test_the_stream_begins_before_a_tool_has_ended_and_leaving_cancels_the_tool(store: TenantStore) -> None:
    reader = WaitingReader()
    stream = service([SEARCH], reader).stream(make_scope(store), chat(model="agent/searching", stream=True))
    async with aclosing(stream):
        assert deltas([await anext(stream)]) == [""]
        following = asyncio.ensure_future(anext(stream))
        await reader.begun.wait()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
    assert reader.cancelled.is_set()
    records = await audit_of(store)
    assert {(record["kind"], record["status"], record["agent"]) for record in records} == {
        ("chat", "ok", "searching"),
        ("tool", "cancelled", "searching"),
    }


async def test_a_model_without_tools_that_calls_one_gets_an_error_and_goes_on(store: TenantStore) -> None:
    script = [[ChatDelta("I search."), *SEARCH], [ChatDelta("I cannot.")]]
    request = chat(model="agent/plain", stream=True)
    blocking = await service(script).complete(make_scope(store), request)
    streamed = deltas([frame async for frame in service(script).stream(make_scope(store), request)])
    assert blocking.choices[0].message.content == "".join(filter(None, streamed)) == "I search.\n\nI cannot."
