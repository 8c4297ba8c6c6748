"""A turn that is stopped closes its connection to the model within two seconds, whatever the model was doing."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest

from spass.agents.engine import Engine
from spass.agents.interrupt import StopSignal, interruptible
from spass.calls.pipeline import Calls
from spass.core.events import Event, collect
from spass.core.messages import FinishReason
from spass.models.router import Router
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from tests.unit.agents.engine_harness import agent
from tests.unit.tools.fakes import FakeReader, rag_with, scope_for, table_of, toolbox_of

pytestmark = pytest.mark.anyio

MAX_SECONDS: Final = 2.0


class HangingModel:
    """A server in OpenAI's format that writes ``words`` and then nothing more. Without words it does not even answer.

    ``is_waiting`` is set when it has written them, and ``is_closed`` when the client has closed the connection.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        self.is_waiting = threading.Event()
        self.is_closed = threading.Event()

    def respond(self, request: HttpRequest) -> HttpAnswer:
        if not self.words:
            self._wait(request)
        return HttpAnswer(self._write(request), content_type="text/event-stream")

    def _write(self, request: HttpRequest) -> Iterator[bytes]:
        for word in self.words:
            chunk = {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
            yield f"data: {json.dumps(chunk)}\n\n".encode()
        self._wait(request)

    def _wait(self, request: HttpRequest) -> None:
        self.is_waiting.set()
        if request.wait_for_disconnect(10):
            self.is_closed.set()


def engine_for(url: str) -> Engine:
    config = GatewayConfig.model_validate(
        {
            "llm": {"backends": [{"provider": "openai", "base_url": f"{url}/v1", "supported_models": ["talker"]}]},
            "models": [{"name": "talker", "context_window": 1000, "usd_per_mtok_in": "1", "usd_per_mtok_out": "2"}],
        }
    )
    cascade, reader = Cascade(config), FakeReader()
    calls = Calls(config, Router(config.llm, config.models, lambda _: "key"), cascade)
    return Engine(calls, toolbox_of(rag=rag_with(reader), cascade=cascade), lambda: reader, cascade)


@pytest.mark.parametrize("words", [(), ("So ", "far ", "so ", "good ")], ids=["before the first byte", "in the text"])
async def test_a_stopped_turn_closes_the_connection_to_its_model(words: tuple[str, ...]) -> None:
    model, scope, signal = HangingModel(words), scope_for(), StopSignal()
    with serve(model.respond) as url:
        turn = interruptible(engine_for(url).run(scope, agent(), "?"), signal=signal, deadline=None, tally=scope.tally)

        async def run() -> list[Event]:
            return [event async for event in turn]

        running = asyncio.create_task(run())
        assert await asyncio.to_thread(model.is_waiting.wait, 10)
        await asyncio.sleep(0.1)
        stopped_at = time.monotonic()
        signal.stop()
        outcome = collect(await running)
        assert time.monotonic() - stopped_at < MAX_SECONDS
        assert await asyncio.to_thread(model.is_closed.wait, MAX_SECONDS)
    assert outcome.finish_reason is FinishReason.CANCELLED
    assert "So far so good ".startswith(outcome.content)
    assert bool(outcome.content) == bool(words)
    assert table_of(scope).audited("chat") == [("talker", "cancelled")]
    assert outcome.cost == scope.tally.total
    assert outcome.cost.usd > 0
