"""The same scripts over a socket, in the wire forms of OpenAI, Anthropic and Ollama, give the same events of a turn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from spass.agents.engine import Engine
from spass.agents.spec import AgentSpec
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.events import Event, Failed, InferenceFinished, Token, ToolCallFinished, ToolCallStarted, TurnFinished
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall
from spass.models.router import Router
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from spass.tools.base import Tool
from tests.unit.agents.engine_harness import agent
from tests.unit.models.wire_forms import SCRIPTS, WIRE_FORMS, WIRE_PATHS, WireScript
from tests.unit.tools.fakes import FakeReader, scope_for, toolbox_of

pytestmark = pytest.mark.anyio

WINDOW: Final = 32_000
ANSWER: Final = WireScript(["It rains ", "in Köln."])
CONTENT_TYPES: Final = {"ollama": "application/x-ndjson"}


class Weather(Tool):
    """Tell the weather."""

    city: str
    days: int = 1
    places: tuple[str, ...] = ()

    async def run(self, _scope: Scope, /) -> Json:
        return {"weather": f"rain in {self.city}"}


AGENT: Final[AgentSpec] = agent(tools=["weather"], kind="orchestrator")


@contextmanager
def engine_over(provider: str, script: WireScript, requests: list[HttpRequest]) -> Iterator[tuple[Engine, Router]]:
    """Yield an engine whose model answers with ``script``, then with ``ANSWER``, over a socket. Record the requests."""

    def respond(request: HttpRequest) -> HttpAnswer:
        requests.append(request)
        pieces = WIRE_FORMS[provider](script if len(requests) == 1 else ANSWER)
        return HttpAnswer(iter(pieces), content_type=CONTENT_TYPES.get(provider, "text/event-stream"))

    with serve(respond) as url:
        config = GatewayConfig.model_validate(
            {
                "llm": {
                    "retries": 0,
                    "backends": [{"provider": provider, "base_url": f"{url}/v1", "supported_models": ["talker"]}],
                },
                "models": [{"name": "talker", "context_window": WINDOW, "usd_per_mtok_in": "1", "usd_per_mtok_out": "2"}],
            }
        )
        router, cascade = Router(config.llm, config.models, lambda _: None), Cascade(config)
        toolbox = toolbox_of(Weather, cascade=cascade)
        yield Engine(Calls(config, router, cascade), toolbox, FakeReader, cascade), router


async def events_of(provider: str, script: WireScript, requests: list[HttpRequest]) -> list[Event]:
    with engine_over(provider, script, requests) as (engine, router):
        events = [event async for event in engine.run(scope_for(), AGENT, "What is the weather?")]
        await router.aclose()
    return events


def comparable(events: Sequence[Event]) -> list[object]:
    """Return the events without what differs by nature: ids of calls are numbered by their first occurrence, a tool's time is
    left out, and a failure is its class and message."""
    ids: dict[str, str] = {}

    def renamed(call: ToolCall) -> ToolCall:
        return replace(call, id=ids.setdefault(call.id, f"call {len(ids)}"))

    def read(message: Message) -> Message:
        result = message.tool_call_id and ids.setdefault(message.tool_call_id, f"call {len(ids)}")
        return replace(message, tool_calls=tuple(map(renamed, message.tool_calls)), tool_call_id=result)

    def simplify(event: Event) -> object:
        match event:
            case InferenceFinished():
                return replace(event, message=read(event.message))
            case ToolCallStarted():
                return replace(event, call=renamed(event.call))
            case ToolCallFinished():
                outcome = event.outcome
                return (renamed(outcome.call), outcome.arguments, outcome.ok, read(outcome.message))
            case Failed():
                return (Failed, type(event.error), str(event.error))
            case _:
                return event

    return [simplify(event) for event in events]


@pytest.mark.parametrize("name", SCRIPTS)
async def test_every_wire_form_of_a_script_gives_the_same_events(name: str) -> None:
    turns = {provider: comparable(await events_of(provider, SCRIPTS[name], [])) for provider in WIRE_FORMS}
    assert turns["ollama"] == turns["openai"]
    assert turns["anthropic"] == turns["openai"]
    assert len(turns["openai"]) > 2


@pytest.mark.parametrize("provider", WIRE_FORMS)
async def test_a_turn_with_two_calls_in_one_piece_runs_both(provider: str) -> None:
    requests: list[HttpRequest] = []
    events = await events_of(provider, SCRIPTS["two calls in one piece"], requests)
    assert [one.call.arguments for one in events if isinstance(one, ToolCallStarted)] == ['{"city": "Köln"}', '{"city": "Bonn"}']
    assert [one.outcome.ok for one in events if isinstance(one, ToolCallFinished)] == [True, True]
    assert "".join(one.text for one in events if isinstance(one, Token)) == ANSWER.text
    end = events[-1]
    assert isinstance(end, TurnFinished)
    assert (end.finish_reason, end.usage) == (FinishReason.STOP, TokenUsage(52, 14))
    assert [request.path for request in requests] == [WIRE_PATHS[provider]] * 2


async def test_every_request_to_ollama_holds_num_ctx_and_the_names_of_the_results() -> None:
    requests: list[HttpRequest] = []
    await events_of("ollama", SCRIPTS["two calls in one piece"], requests)
    bodies: list[Mapping[str, Any]] = [request.json for request in requests]
    assert [body["options"]["num_ctx"] for body in bodies] == [WINDOW] * 2
    assert [body["stream"] for body in bodies] == [True] * 2
    *_, asked, first, second = bodies[1]["messages"]
    assert [one["function"]["arguments"] for one in asked["tool_calls"]] == [{"city": "Köln"}, {"city": "Bonn"}]
    assert [(one["role"], one["tool_name"]) for one in (first, second)] == [(Role.TOOL, "weather")] * 2
    assert [city in one["content"] for one, city in ((first, "Köln"), (second, "Bonn"))] == [True, True]
