"""A tool that is stopped ends within two seconds, whatever it waits for: a timer, a thread, AWS, a server or a model."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import ClassVar, Final

import anyio.to_thread
import pytest

from spass.agents.interrupt import StopSignal, interruptible
from spass.calls.scope import Scope
from spass.core.events import Event, InferenceFinished, ToolCallFinished, ToolCallStarted, TurnFinished, TurnStarted, collect
from spass.core.messages import FinishReason, Json, Message, Role, ToolCall
from spass.store.invocation import ServiceCall, invoke_blocking
from spass.tenancy.config import SearchConfig
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from spass.tools.base import Tool
from spass.tools.search_engine import SearchEngine
from spass.tools.toolbox import Toolbox
from tests.unit.tools.fakes import scope_for, table_of, toolbox_of

pytestmark = pytest.mark.anyio

MAX_SECONDS: Final = 2.0
RELEASED: Final = threading.Event()
"""Set at the end of each test, so that no thread outlives it."""


class Blocked(Tool):
    """Waits for ``what``, without end."""

    category: ClassVar[str] = "reasoning"

    what: str

    async def run(self, _scope: Scope, /) -> Json:
        match self.what:
            case "a timer":
                await asyncio.sleep(3600)
            case "a thread of anyio":
                await anyio.to_thread.run_sync(RELEASED.wait)
            case "a thread of asyncio":
                await asyncio.to_thread(RELEASED.wait)
            case "a read of AWS":
                await invoke_blocking(ServiceCall("s3", "GetObject", {}), RELEASED.wait)
            case "tasks":
                async with asyncio.TaskGroup() as group:
                    for _ in range(3):
                        group.create_task(asyncio.sleep(3600))
        return None


@pytest.fixture(autouse=True)
def _release_threads() -> Iterator[None]:
    RELEASED.clear()
    yield
    RELEASED.set()


async def run_and_stop(toolbox: Toolbox, call: ToolCall, seconds: float = 0.05) -> tuple[list[Event], float]:
    """Run a turn that calls a tool, and stop it after ``seconds``. Return its events, and how long the stop took."""
    scope, signal = scope_for(), StopSignal()
    stopped_at: list[float] = []

    async def turn() -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        yield InferenceFinished(Message(Role.ASSISTANT, "", (call,)), FinishReason.TOOL_CALLS)
        async with aclosing(toolbox.run_all(scope, [call], allowed=[call.name])) as events:
            async for event in events:
                if isinstance(event, ToolCallStarted):
                    asyncio.get_running_loop().call_later(seconds, stop)
                yield event

    def stop() -> None:
        stopped_at.append(time.monotonic())
        signal.stop()

    events = [event async for event in interruptible(turn(), signal=signal, deadline=None, tally=scope.tally)]
    RELEASED.set()
    assert table_of(scope).audited("tool") == [(call.name, "cancelled")]
    return events, time.monotonic() - stopped_at[0]


def check_cancelled(events: list[Event]) -> None:
    (tool,) = collect(events).tool_calls
    assert isinstance(tool.result, dict)
    assert tool.result["error"]["code"] == "cancelled"
    assert (tool.ok, tool.duration_ms >= 40) == (False, True)
    assert isinstance(events[-1], TurnFinished)
    assert sum(isinstance(event, ToolCallFinished) for event in events) == 1


@pytest.mark.parametrize("what", ["a timer", "a thread of anyio", "a thread of asyncio", "a read of AWS", "tasks"])
async def test_a_tool_that_waits_stops_at_once(what: str) -> None:
    toolbox = toolbox_of(Blocked)
    events, seconds = await run_and_stop(toolbox, ToolCall("call_1", "blocked", f'{{"what": "{what}"}}'))
    check_cancelled(events)
    assert seconds < MAX_SECONDS


async def test_a_search_that_waits_for_its_server_closes_the_connection() -> None:
    disconnected: list[bool] = []
    is_done = threading.Event()

    def hang(request: HttpRequest) -> HttpAnswer | None:
        disconnected.append(request.wait_for_disconnect(10))
        is_done.set()
        return None

    with serve(hang) as url:
        engine = SearchEngine(SearchConfig(provider="searxng", base_url=url), lambda _: None)
        toolbox = toolbox_of(search_engine=engine)
        events, seconds = await run_and_stop(toolbox, ToolCall("call_1", "web_search", '{"query": "berlin"}'), 0.5)
        check_cancelled(events)
        assert await asyncio.to_thread(is_done.wait, MAX_SECONDS)
    assert seconds < MAX_SECONDS
    assert disconnected == [True]


async def test_a_search_that_waits_for_its_key_stops_at_once() -> None:
    def key_of(_: str) -> str | None:
        RELEASED.wait()
        return None

    engine = SearchEngine(SearchConfig(provider="tavily", api_key_env="TAVILY_API_KEY"), key_of)
    toolbox = toolbox_of(search_engine=engine)
    events, seconds = await run_and_stop(toolbox, ToolCall("call_1", "web_search", '{"query": "berlin"}'))
    check_cancelled(events)
    assert seconds < MAX_SECONDS
