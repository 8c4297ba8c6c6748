"""Answer in a text protocol: the system prompt describes tools and markers, and calls and results are text.

The stand-in reads such a conversation as one with function calling, chooses as there, and writes its choice with the markers.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from local.standin.answers import answer
from local.standin.conversation import Conversation, Message, text_of
from local.standin.tools import choose
from spass.agents.kinds.protocols import REACT, STRUCTURED, Protocol, parse_reply, write_call

_TOOL: Final = re.compile(r"^([A-Za-z0-9_-]{1,64}) \(category: [^)\n]*\): ", re.MULTILINE)
_REQUIRED: Final = re.compile(r"^- (\w+) \((\w+), required\)", re.MULTILINE)


def requested_protocol(messages: Sequence[Message]) -> Protocol | None:
    """Return the protocol whose markers begin lines of the system prompt, or None."""
    prompt = f"\n{_system_prompt(messages)}"
    return next((one for one in (REACT, STRUCTURED) if f"\n{one.thought}" in prompt and f"\n{one.final}" in prompt), None)


def answer_as_text(protocol: Protocol, messages: Sequence[Message]) -> str:
    """Return the next tool call that the question asks for, or the answer, with the protocol's markers."""
    conversation = Conversation.read([*_as_native(protocol, messages)])
    tools = [*_tools(_system_prompt(messages))]
    finished = {result.name for result in conversation.results}
    for call in choose({"tools": tools}, replace(conversation, results=())):
        function = call["function"]
        if function["name"] not in finished:
            return write_call("I need a tool for that.", function["name"], function["arguments"], protocol)
    return f"{protocol.thought} I can answer.\n{protocol.final} {answer(conversation)}"


def _system_prompt(messages: Sequence[Message]) -> str:
    return "\n".join(text_of(message) for message in messages if message.get("role") in ("system", "developer"))


def _as_native(protocol: Protocol, messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages, with written calls as tool calls and observations as tool results."""
    call_id = ""
    for number, message in enumerate(messages):
        role, text = message.get("role"), text_of(message)
        reply = parse_reply(text, protocol) if role == "assistant" else None
        if reply and reply.call:
            call_id = f"call_{number}"
            function = {"name": reply.call.name, "arguments": reply.call.input}
            yield {"role": "assistant", "content": reply.text, "tool_calls": [{"id": call_id, "function": function}]}
        elif reply:
            yield {**message, "content": reply.answer or reply.text}
        elif role == "user" and text.startswith(protocol.observation):
            yield {"role": "tool", "tool_call_id": call_id, "content": text.removeprefix(protocol.observation).lstrip()}
        else:
            yield message


def _tools(prompt: str) -> Iterator[dict[str, Any]]:
    """Yield the tools that the prompt describes, with their required parameters, in OpenAI's format."""
    _, *pieces = _TOOL.split(prompt)
    for name, description in zip(pieces[::2], pieces[1::2], strict=True):
        required = dict(_REQUIRED.findall(description))
        properties = {parameter: {"type": kind} for parameter, kind in required.items()}
        schema = {"type": "object", "properties": properties, "required": [*required]}
        yield {"type": "function", "function": {"name": name, "parameters": schema}}
