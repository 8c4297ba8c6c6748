"""Answer in a text protocol: the system prompt describes tools and markers, and calls and results are text.

The stand-in reads such a conversation as one with function calling, chooses as there, and writes its choice with the markers.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from local.standin.answers import answer
from local.standin.conversation import Conversation, Message, text_of
from local.standin.toolchoice import choose

_SYSTEM_ROLES: Final = ("system", "developer")
_TOOL: Final = re.compile(r"^([A-Za-z0-9_-]{1,64}) \(category: [^)\n]*\): ", re.MULTILINE)
_PARAMETER: Final = re.compile(r"^- (\w+) \((?:(\w+), )?(required|optional)\)(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TextProtocol:
    """The markers of a text protocol."""

    thought: str
    action: str
    input: str
    final: str
    observation: str = "Observation:"


PROTOCOLS: Final = (
    TextProtocol("Thought:", "Action:", "Action Input:", "Final Answer:"),
    TextProtocol("THOUGHT:", "TOOL:", "INPUT:", "FINAL_ANSWER:"),
)


def requested_protocol(messages: Sequence[Message]) -> TextProtocol | None:
    """Return the protocol whose markers begin lines of the system prompt, or None."""
    prompt = "\n".join(text_of(message) for message in messages if message.get("role") in _SYSTEM_ROLES)
    lines = prompt.splitlines()
    return next((one for one in PROTOCOLS if all(_has_line(lines, marker) for marker in (one.thought, one.final))), None)


def answer_as_text(protocol: TextProtocol, messages: Sequence[Message]) -> str:
    """Return the next tool call that the question asks for, or the answer, with the protocol's markers."""
    conversation = Conversation.read([*_as_native(protocol, messages)])
    tools = [tool for message in messages if message.get("role") in _SYSTEM_ROLES for tool in _tools(text_of(message))]
    calls = choose({"tools": tools}, replace(conversation, results=()))
    finished = {result.name for result in conversation.results}
    for function in (call["function"] for call in calls):
        if function["name"] not in finished:
            thought = "Dafür brauche ich ein Werkzeug." if conversation.is_german else "I need a tool for that."
            return f"{protocol.thought} {thought}\n{_write_call(protocol, function['name'], function['arguments'])}"
    thought = "Ich kann antworten." if conversation.is_german else "I can answer."
    return f"{protocol.thought} {thought}\n{protocol.final} {answer(conversation)}"


def _write_call(protocol: TextProtocol, name: str, arguments: str) -> str:
    return f"{protocol.action} {name}\n{protocol.input} {arguments}"


def _as_native(protocol: TextProtocol, messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with written calls as tool calls, observations as tool results, and a system prompt without the
    description of the protocol."""
    call = re.compile(rf"(?s)(?:{protocol.thought} (.*)\n)?{protocol.action} (\S+)\n{protocol.input} (.*)")
    call_id = ""
    for number, message in enumerate(messages):
        role, text = message.get("role"), text_of(message)
        if role in _SYSTEM_ROLES:
            yield {**message, "content": _without_description(protocol, text)}
        elif role == "assistant" and (written := call.fullmatch(text)):
            call_id = f"call_{number}"
            function = {"name": written[2], "arguments": written[3]}
            tool_calls = [{"id": call_id, "type": "function", "function": function}]
            yield {"role": "assistant", "content": written[1] or "", "tool_calls": tool_calls}
        elif role == "assistant":
            yield {**message, "content": text.removeprefix(protocol.final).lstrip()}
        elif role == "user" and text.startswith(protocol.observation):
            yield {"role": "tool", "tool_call_id": call_id, "content": text.removeprefix(protocol.observation).lstrip()}
        else:
            yield message


def _without_description(protocol: TextProtocol, prompt: str) -> str:
    """Return the text before the paragraph that leads to the first line with a marker."""
    paragraphs = prompt.split("\n\n")
    first = next((at for at, one in enumerate(paragraphs) if _has_line(one.splitlines(), protocol.thought)), len(paragraphs) + 1)
    return "\n\n".join(paragraphs[: max(0, first - 1)])


def _tools(prompt: str) -> Iterator[dict[str, Any]]:
    """Yield the tools that the prompt describes, in OpenAI's format."""
    _, *pieces = _TOOL.split(prompt)
    for name, description in zip(pieces[::2], pieces[1::2], strict=True):
        parameters = [*_PARAMETER.finditer(description)]
        schema = {
            "type": "object",
            "properties": {one[1]: {**({"type": one[2]} if one[2] else {}), **_json_at_end(one[4])} for one in parameters},
            "required": [one[1] for one in parameters if one[3] == "required"],
        }
        yield {"type": "function", "function": {"name": name, "parameters": schema}}


def _json_at_end(text: str) -> Mapping[str, Any]:
    """Return the JSON object that ``text`` ends with, or an empty one."""
    for brace in re.finditer(r"\{", text):
        try:
            value = json.loads(text[brace.start() :])
        except ValueError:
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _has_line(lines: Sequence[str], marker: str) -> bool:
    return any(line.startswith(marker) for line in lines)
