"""A tool receives exactly the arguments that a model wrote: 1,000 calls of the Berkeley function-calling corpus, each as a native
call and in both text protocols, in three spellings, through the driver and the toolbox."""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import pytest
from pydantic import model_validator

from spass.agents.driver import Driver
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.kinds.native_react import NativeReActAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.kinds.protocols import REACT, STRUCTURED, Protocol
from spass.calls.scope import Scope
from spass.calls.text_calls import TextCallReader
from spass.core.effects import Infer
from spass.core.events import collect
from spass.core.json import dump_canonical
from spass.core.messages import FinishReason, Json, ToolCallDelta
from spass.models.types import ChatDelta
from spass.tools.base import Tool
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ToolClasses
from tests.sampling import sampled
from tests.unit.agents.bfcl import CorpusCall, corpus_calls
from tests.unit.collected_replies import collect_deltas
from tests.unit.tools.fakes import scope_for

pytestmark = pytest.mark.anyio

NUMBER: Final = 1000
PIECE: Final = 7  # characters of one delta

Spelling = Callable[[CorpusCall], Sequence[ChatDelta]]

received: list[Json] = []
"""The arguments of every call of ``Recording``, in order."""


class Recording(Tool):
    """Record any arguments."""

    given: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_keys(cls, data: object) -> object:
        return {"given": data}

    async def run(self, _scope: Scope, /) -> Json:
        received.append(self.given)
        return "done"


@dataclass(slots=True)
class Script:
    """A model that gives ``replies`` in order."""

    replies: list[Sequence[ChatDelta]]

    async def perform(self, _effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        for delta in self.replies.pop(0):
            yield delta

    def begins_thinking(self, _effect: Infer) -> bool:
        return False


@cache
def calls() -> Sequence[CorpusCall]:
    return corpus_calls(NUMBER)


def pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def native(call: CorpusCall, arguments: Sequence[str], words: str = "") -> Sequence[ChatDelta]:
    parts = [ToolCallDelta(0, "c1", call.name), *(ToolCallDelta(0, arguments=piece) for piece in arguments)]
    deltas = [ChatDelta(tool_calls=(part,)) for part in parts]
    return [ChatDelta(words), *deltas, ChatDelta(finish_reason=FinishReason.TOOL_CALLS)]


def written(text: str) -> Sequence[ChatDelta]:
    return [*map(ChatDelta, pieces(text)), ChatDelta(finish_reason=FinishReason.STOP)]


def native_in_one_piece(call: CorpusCall) -> Sequence[ChatDelta]:
    return native(call, [json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))])


def native_in_pieces(call: CorpusCall) -> Sequence[ChatDelta]:
    return native(call, pieces(json.dumps(call.arguments, indent=2)), words="I call it.")


def native_with_escapes(call: CorpusCall) -> Sequence[ChatDelta]:
    arguments = json.dumps(call.arguments, ensure_ascii=True).replace("o", "\\u006f")
    return native(call, ["", *arguments])


def as_json(protocol: Protocol, call: CorpusCall) -> Sequence[ChatDelta]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return written(f"{protocol.thought} I need a tool.\n{protocol.action} {call.name}\n{protocol.input} {arguments}")


def in_a_fence_with_an_imagined_result(protocol: Protocol, call: CorpusCall) -> Sequence[ChatDelta]:
    arguments = json.dumps(call.arguments, indent=2)
    action, given = protocol.action.upper(), protocol.input.lower()
    return written(
        f"I need a tool.\n\n**{action}** `{call.name}`\n\n**{given}**\n```json\n{arguments}\n```\nNow I wait.\n"
        f"{protocol.observation} failed\n{protocol.final} It failed."
    )


def as_bare_text_or_python(protocol: Protocol, call: CorpusCall) -> Sequence[ChatDelta]:
    """Write the call in a fence and twice, and the second time with other arguments."""
    text = bare_text(call) or repr(call.arguments)
    lines = (
        f"{protocol.action}{call.name}",
        f" {protocol.input}\t{text}",
        f"{protocol.action} {call.name}",
        f"{protocol.input} {{}}",
    )
    return written("```\n" + "\n".join(lines) + "\n```")


def bare_text(call: CorpusCall) -> str | None:
    """Return the only argument, if it is the tool's only required string and is not a literal itself."""
    schema: Any = next(spec for spec in call.specs if spec.name == call.name).parameters
    required = schema.get("required", [])
    text = call.arguments.get(required[0]) if len(required) == 1 else None
    is_string = isinstance(text, str) and schema["properties"][required[0]]["type"] == "string"
    is_bare = is_string and len(call.arguments) == 1 and str(text).strip(" \"'{}") == text
    return str(text) if is_bare and text else None


NATIVE: Final = (native_in_one_piece, native_in_pieces, native_with_escapes)
WRITTEN: Final = (as_json, in_a_fence_with_an_imagined_result, as_bare_text_or_python)
KINDS: Final[Sequence[tuple[BaseAgent, Sequence[Spelling]]]] = [
    (OrchestratorAgent(), NATIVE),
    (OrchestratorAgent(mode="structured"), [partial(spelling, STRUCTURED) for spelling in WRITTEN]),
    (NativeReActAgent(), [partial(spelling, REACT) for spelling in WRITTEN]),
]


@pytest.mark.parametrize("spelling", range(3))
@pytest.mark.parametrize("kind", range(3), ids=["native", "structured", "react"])
async def test_the_tool_receives_exactly_the_arguments_that_a_model_wrote(kind: int, spelling: int) -> None:
    agent, spellings = KINDS[kind]
    names = {spec.name for call in calls() for spec in call.specs}
    toolbox, scope = Toolbox(lambda _: (ToolClasses(names, load=lambda _: Recording),)), scope_for()
    for call in sampled(calls(), 5):
        received.clear()
        context = AgentContext(tools=tuple(spec.name for spec in call.specs), specs=call.specs)
        script = Script([spellings[spelling](call), [ChatDelta("Done.", finish_reason=FinishReason.STOP)]])
        driver = Driver(script, partial(toolbox.run_all, scope, allowed=context.tools), scope)
        outcome = collect([event async for event in driver.run(agent, "question", context)])
        assert [result.call.name for result in outcome.tool_calls] == [call.name], call.id
        assert [*map(dump_canonical, received)] == [dump_canonical(call.arguments)], call.id
        assert (outcome.content, outcome.turns) == ("Done.", 2), call.id


def test_the_corpus_has_calls_of_every_sort() -> None:
    assert len(calls()) == NUMBER
    assert len({call.id for call in calls()}) == NUMBER
    assert sum(len(call.specs) > 1 for call in calls()) > 300
    assert sum(call.id.startswith("live") for call in calls()) == 400
    assert sum(bare_text(call) is not None for call in calls()) > 50
    assert {type(value) for call in calls() for value in call.arguments.values()} == {str, int, float, bool, list, dict}


SPELLINGS_OF_TEXT: Final[Sequence[Callable[[str, Json], str]]] = [
    lambda name, arguments: f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n" * 2,
    lambda name, arguments: f"[{', '.join([f'{name}({_keywords(arguments)})'] * 2)}]",
    lambda name, arguments: (
        f"I call it.\n```json\n{json.dumps({'name': name, 'parameters': arguments}, indent=1) * 2}\n```\nThen I wait."
    ),
]


def _keywords(arguments: Json) -> str:
    assert isinstance(arguments, dict)
    return ", ".join(f"{word}={value!r}" for word, value in arguments.items())


@pytest.mark.parametrize("spelling", SPELLINGS_OF_TEXT)
def test_calls_in_the_text_of_a_model_have_the_arguments_that_it_wrote(spelling: Callable[[str, Json], str]) -> None:
    for call in sampled(calls(), 4):
        reader = TextCallReader({call.name})
        deltas = [reader.feed(ChatDelta(piece)) for piece in pieces(spelling(call.name, call.arguments))]
        reply = collect_deltas([*deltas, reader.flush()])
        assert [(made.name, json.loads(made.arguments)) for made in reply.message.tool_calls] == [(call.name, call.arguments)] * 2
        assert reply.message.content in ("", "I call it.\n\nThen I wait.")
