"""The same streamed answers in the wire forms of OpenAI, Anthropic and Ollama."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spass.core.messages import Json, TokenUsage

USAGE: Final = TokenUsage(26, 7)
CUT: Final = "The provider's stream broke off before its end."
"""The message of a stream that ends before its answer does."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call as a model writes it. ``arguments`` is the JSON text in the pieces in which it is streamed; Ollama sends it
    whole."""

    name: str
    arguments: Sequence[str]

    @property
    def text(self) -> str:
        return "".join(self.arguments)


Step: TypeAlias = str | Sequence[WrittenCall]
"""A piece of text, or tool calls that arrive in one piece."""


@dataclass(frozen=True, slots=True)
class WireScript:
    """A streamed answer. ``error`` ends it with an error of this message; ``cut`` ends the stream without a word."""

    steps: Sequence[Step]
    is_too_long: bool = False
    error: str | None = None
    cut: bool = False

    @property
    def calls(self) -> list[WrittenCall]:
        return [call for step in self.steps if not isinstance(step, str) for call in step]

    @property
    def text(self) -> str:
        return "".join(step for step in self.steps if isinstance(step, str))


WireForm: TypeAlias = Callable[[WireScript], list[bytes]]
"""Return a script in the wire form of one provider, in the pieces in which it sends it."""


def call(name: str, arguments: Mapping[str, Json] | str, piece: int = 1000) -> WrittenCall:
    """Return a call whose arguments arrive in pieces of ``piece`` characters."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return WrittenCall(name, [text[at : at + piece] for at in range(0, len(text), piece)])


def in_openai_form(script: WireScript) -> list[bytes]:
    return [b"data: " + _json(chunk) + b"\n\n" for chunk in _openai_chunks(script)] + (
        [] if script.cut or script.error else [b"data: [DONE]\n\n"]
    )


def in_anthropic_form(script: WireScript) -> list[bytes]:
    return [b"".join(map(_anthropic_event, events)) for events in _anthropic_pieces(script)]


def in_ollama_form(script: WireScript) -> list[bytes]:
    return [_json(line) + b"\n" for line in _ollama_lines(script)]


WIRE_FORMS: Final[Mapping[str, WireForm]] = {
    "openai": in_openai_form,
    "anthropic": in_anthropic_form,
    "ollama": in_ollama_form,
}
WIRE_PATHS: Final = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages", "ollama": "/api/chat"}


def _json(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _openai_chunks(script: WireScript) -> Iterator[Json]:
    number = 0
    for step in script.steps:
        if isinstance(step, str):
            yield {"choices": [{"index": 0, "delta": {"content": step}, "finish_reason": None}]}
            continue
        first: list[Json] = []
        for index, one in enumerate(step, start=number):
            function: Json = {"name": one.name, "arguments": one.arguments[0]}
            first.append({"index": index, "id": f"call_{index}", "type": "function", "function": function})
        yield {"choices": [{"index": 0, "delta": {"tool_calls": first}, "finish_reason": None}]}
        for index, one in enumerate(step, start=number):
            for piece in one.arguments[1:]:
                more: Json = [{"index": index, "function": {"arguments": piece}}]
                yield {"choices": [{"index": 0, "delta": {"tool_calls": more}, "finish_reason": None}]}
        number += len(step)
    if script.error:
        yield {"error": {"message": script.error, "type": "server_error"}}
    elif not script.cut:
        reason = "length" if script.is_too_long else "tool_calls" if script.calls else "stop"
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        yield {"choices": [], "usage": {"prompt_tokens": USAGE.prompt_tokens, "completion_tokens": USAGE.completion_tokens}}


def _anthropic_event(event: Mapping[str, Json]) -> bytes:
    return f"event: {event['type']}\n".encode() + b"data: " + _json(event) + b"\n\n"


def _anthropic_pieces(script: WireScript) -> Iterator[list[Mapping[str, Json]]]:
    usage: Json = {"input_tokens": USAGE.prompt_tokens, "output_tokens": 1}
    yield [{"type": "message_start", "message": {"content": [], "usage": usage}}, {"type": "ping"}]
    block = 0
    for step in script.steps:
        if isinstance(step, str):
            yield _anthropic_block(block, {"type": "text", "text": ""}, [{"type": "text_delta", "text": step}])
            block += 1
            continue
        events: list[Mapping[str, Json]] = []
        for one in step:
            use: Json = {"type": "tool_use", "id": f"toolu_{block}", "name": one.name, "input": {}}
            pieces: list[Json] = [{"type": "input_json_delta", "partial_json": piece} for piece in one.arguments]
            events += _anthropic_block(block, use, pieces)
            block += 1
        yield events
    if script.error:
        yield [{"type": "error", "error": {"type": "api_error", "message": script.error}}]
    elif not script.cut:
        reason = "max_tokens" if script.is_too_long else "tool_use" if script.calls else "end_turn"
        written: Json = {"output_tokens": USAGE.completion_tokens}
        yield [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": written}, {"type": "message_stop"}]


def _anthropic_block(index: int, content: Json, deltas: Sequence[Json]) -> list[Mapping[str, Json]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _ollama_lines(script: WireScript) -> Iterator[Json]:
    for step in script.steps:
        message: dict[str, Json] = {"role": "assistant", "content": step if isinstance(step, str) else ""}
        if not isinstance(step, str):
            message["tool_calls"] = [{"function": {"name": one.name, "arguments": _object_or_text(one.text)}} for one in step]
        yield {"model": "m", "created_at": "2025-07-07T20:22:19.184789Z", "message": message, "done": False}
    if script.error:
        yield {"error": script.error}
    elif not script.cut:
        yield {
            "model": "m",
            "created_at": "2025-07-07T20:22:19.19314Z",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "length" if script.is_too_long else "stop",
            "prompt_eval_count": USAGE.prompt_tokens,
            "eval_count": USAGE.completion_tokens,
        }


def _object_or_text(arguments: str) -> Json:
    """Return the arguments as an object, or as the text that the model wrote if it is not JSON."""
    try:
        value: Json = json.loads(arguments)
    except ValueError:
        return arguments
    return value


WEATHER_IN_KOELN: Final[Mapping[str, Json]] = {"city": "Köln 😀", "days": 2, "places": ['Dom "am Rhein"', "Zoo\n"]}
SCRIPTS: Final[Mapping[str, WireScript]] = {
    "text": WireScript(["In Kö", "ln 😀", ' it "rains".\n']),
    "text that is cut off by its limit": WireScript(["In Kö"], is_too_long=True),
    "one call": WireScript([[call("weather", WEATHER_IN_KOELN)]]),
    "a text and a call": WireScript(["I will ", "look.", [call("weather", WEATHER_IN_KOELN)]]),
    "a call whose arguments are split at every character": WireScript([[call("weather", WEATHER_IN_KOELN, piece=1)]]),
    "a call without arguments": WireScript([[call("weather", {})]]),
    "several calls": WireScript([[call("weather", {"city": city}, piece=3)] for city in ("Köln", "Bonn", "Trier")]),
    "two calls in one piece": WireScript([[call("weather", {"city": "Köln"}), call("weather", {"city": "Bonn"})]]),
    "an unknown tool": WireScript([[call("clock", {"zone": "CET"})]]),
    "arguments that are not JSON": WireScript([[call("weather", '{"city": "Kö')]]),
    "arguments that are not JSON, beside others": WireScript(
        ["Look: ", [call("weather", "Köln", piece=1), call("weather", {"city": "Bonn"})]]
    ),
    "an error before the first token": WireScript([], error="the model broke"),
    "an error after the first token": WireScript(["In Kö"], error="the model broke"),
    "an error after a call": WireScript(["Look.", [call("weather", {"city": "Köln"})]], error="the model broke"),
    "a cut before the first token": WireScript([], cut=True),
    "a cut after the first token": WireScript(["In Kö"], cut=True),
    "a cut after a call": WireScript(["Look.", [call("weather", {"city": "Köln"})]], cut=True),
}
"""The table of scripts that every wire form must read alike."""
